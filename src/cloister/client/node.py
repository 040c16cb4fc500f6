"""A node that is verified, and verified again when its evidence has grown old or its channel key is gone.

One for all threads of a client: whoever comes while another verifies waits for the same outcome. It sends no prompt.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic

from cloister.attest.policy import Policy
from cloister.client.address import NodeAddress
from cloister.client.verification import Verification, verify


class VerifiedNode:
    """Holds the last verification that passed. There is no state in which it has none: making one verifies."""

    def __init__(
        self,
        url: str,
        policy: Policy,
        *,
        verifier: Callable[[NodeAddress, Policy], Verification] = verify,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.address = NodeAddress.parse(url)
        self.policy = policy
        self._verifier = verifier
        self._clock = clock
        self._lock = threading.Lock()
        self._verification = verifier(self.address, policy)
        self._until = clock() + policy.max_age_s

    @property
    def verification(self) -> Verification:
        """The last one, however old."""
        return self._verification

    @property
    def fresh(self) -> Verification | None:
        """The last one if it is young enough to rely on; never waits."""
        return self._verification if self._clock() < self._until else None

    def verified(self, *, after: Verification | None = None) -> Verification:
        """A verification to rely on, made now if need be; one other than `after`, which turned out to be of no use.

        Raises VerificationFailed or ServiceUnavailable, and then nothing may be sent.
        """
        if (kept := self.fresh) is not None and kept is not after:
            return kept
        with self._lock:
            kept = self.fresh
            if kept is None or kept is after:
                kept = self._verifier(self.address, self.policy)
                self._until = self._clock() + self.policy.max_age_s
                self._verification = kept
            return kept

    async def verified_beside(self, *, after: Verification | None = None) -> Verification:
        """As `verified`; what it waits for, the event loop does not."""
        kept = self.fresh
        return kept if kept is not None and kept is not after else await asyncio.to_thread(self.verified, after=after)
