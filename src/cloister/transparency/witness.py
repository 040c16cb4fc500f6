"""A witness: signs a log's checkpoint only if it continues the last one it signed, so that all see the same log.

C2SP tlog-cosignature; the rules are those of tlog-witness. What it signed is on its disk before its signature leaves.
It knows the logs it was given keys for, and nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cloister.errors import VerificationFailed
from cloister.transparency.checkpoint import Checkpoint, SignedCheckpoint
from cloister.transparency.keys import SigningKey, VerifierKey
from cloister.transparency.log import Log
from cloister.transparency.merkle import verify_consistency
from cloister.transparency.note import Signature
from cloister.transparency.seen import SeenLogs

STATE_FILE = "witnessed.json"


class Witness:
    """One witness: its key, and the folder where it remembers what it signed."""

    def __init__(self, key: SigningKey, state: Path) -> None:
        self._key = key
        self._memory = SeenLogs(state / STATE_FILE)

    def last(self, origin: str) -> Checkpoint | None:
        """The last checkpoint of this log that it signed."""
        return self._memory.last(origin)

    def knows(self, origin: str) -> str | None:
        """The key it knows this log by."""
        return self._memory.pinned(origin)

    def meet(self, log: VerifierKey) -> None:
        """Know this log by this key from now on; another key for the same name is refused."""
        self._memory.pin(log.name, log)

    def cosign(self, signed: SignedCheckpoint, consistency: Sequence[bytes], *, at: datetime) -> Signature:
        """Sign the checkpoint, or raise VerificationFailed that says what is wrong with it."""
        now = signed.checkpoint
        known = self._memory.pinned(now.origin)
        if known is None:
            raise VerificationFailed(
                f"This witness does not know the log {now.origin!a}.", checks=("log checkpoint",), hint="Give its key."
            )
        if not signed.signed_by(VerifierKey.parse(known)):
            raise VerificationFailed("The checkpoint is not signed by the log's key.", checks=("log checkpoint",))
        last = self._memory.last(now.origin)
        if last is not None and not _continues(last, now, consistency):
            raise VerificationFailed(
                f"The log {now.origin!a} shows {now.size} entries that do not continue the {last.size} signed before.",
                checks=("log consistency",),
                hint="It was forked or rolled back. Keep both checkpoints: together they prove it.",
            )
        self._memory.remember(signed, after=last)
        return self._key.sign(now.text, at=at)

    def visit(self, log: Log, *, at: datetime) -> Signature:
        """Sign the checkpoint of the log in a folder, proofs computed from its tiles."""
        last = self.last(log.origin)
        reachable = last is not None and last.size <= log.checkpoint.size
        return self.cosign(log.signed, log.consistency(last.size) if last and reachable else (), at=at)


def _continues(last: Checkpoint, now: Checkpoint, consistency: Sequence[bytes]) -> bool:
    if last.size == 0:
        return not consistency
    return verify_consistency(last.size, now.size, last.root, now.root, consistency)
