"""Vaults, and spares. One serves one session and is killed. Prompts wait here, as bytes, until it is sealed."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

import msgspec

from cloister.controller.attention import LinkSlots
from cloister.controller.forkserver import ForkServer
from cloister.controller.vault_host import VaultHostClient
from cloister.cores import usable_cores
from cloister.errors import CloisterError, ProtocolError, ServiceUnavailable, VaultLost
from cloister.link.memory import LinkMemory, LinkShape
from cloister.messages.controller_vault import FromVault, VaultReady
from cloister.messages.lifecycle import StartFailed, why_not_started
from cloister.messages.types import VERSION
from cloister.process.endpoint import Endpoint
from cloister.process.watchdog import SILENT, Patience

log = logging.getLogger(__name__)
SECONDS_BEFORE_REPLACING_A_DEAD_SPARE = 1.0
NEVER_SEALED = VaultLost("A vault ended before it was sealed.", hint="Perhaps memory or processes ran out.")
MOST_MADE_AT_ONCE = max(4, usable_cores() // 2)  # beyond these a vault waits to be made, unless its tenant has none


class Vault:
    """`vaults.ended` is called once if it ends, breaks the protocol or is late, and not when its owner closes it."""

    def __init__(
        self, number: int, forkserver: ForkServer | VaultHostClient, shape: LinkShape, vaults: "Vaults"
    ) -> None:
        self.number, self._vaults = number, vaults
        slots = self._slots = vaults.slots
        # Where its link is, if the service's device has memory for links.
        self.slot = None if slots is None else slots.take()
        self._when_sealed: list[Callable[[], None]] = []
        self.link = LinkMemory(shape)
        self.open = True
        self.alone = False  # no service may ask it
        self.ordered_at = monotonic()
        self.taken_at: float | None = None
        self.sealed_at: float | None = None
        self.trouble: CloisterError | None = None  # why it did not start, if it reported that
        self.tried = asyncio.Event()  # set when it is sealed, or has ended before
        memory, weights = self.link.vault_descriptors, None
        if slots is not None and self.slot is not None:
            memory, weights = slots.descriptors(self.slot), slots.weights
        self._child, ours = forkserver.spawn("vault", *memory, weights=weights)
        self._channel = Endpoint(ours, FromVault, self._receive, self.abort)
        self._channel.watch("vault", lambda: self._child.stopped)
        self._patience = asyncio.get_running_loop().call_later(vaults.ready_s, self.abort)

    def send(self, message: msgspec.Struct) -> None:
        self.when_sealed(partial(self._channel.send, message))

    def when_sealed(self, then: Callable[[], None]) -> None:
        if self.sealed_at is not None:
            then()
        elif self.open:
            self._when_sealed.append(then)

    def abort(self) -> None:
        if self.open:
            self.close()
            self._vaults.ended(self)

    def close(self, wait_s: float = 0.0) -> None:
        """MPS ends it where a signal would end others too. Closing the link ends a service's wait for its answer."""
        if not self.open:
            return
        self.open = False
        self.tried.set()
        self._patience.cancel()
        self._channel.close()
        if self._slots is None or self.slot is None or wait_s:
            self._child.kill(wait_s)
        else:
            self._slots.release(self.slot, self._child)
        self._when_sealed.clear()
        self.link.close()

    def _receive(self, message: msgspec.Struct) -> None:
        if self.sealed_at is not None:
            self._vaults.on_message(self, message)
        elif isinstance(message, VaultReady) and message.version == VERSION:
            self._patience.cancel()
            self._channel.demand_answers(self._vaults.patience)
            self.sealed_at = monotonic()
            self.tried.set()
            for then in self._when_sealed:
                then()
            self._when_sealed.clear()
            self._vaults.sealed()
        elif isinstance(message, StartFailed):
            self.trouble = why_not_started(message)
            self.abort()
        else:
            raise ProtocolError("A vault sent a message before it was sealed.")


class Vaults:
    """Keeps `spares` fresh ones while there is a fork server; `on_sealed` is called when there is one more."""

    def __init__(
        self,
        spares: int,
        ready_s: float,
        on_message: Callable[[Vault, msgspec.Struct], None],
        on_end: Callable[[Vault], None],
        on_sealed: Callable[[], None] = lambda: None,
        patience: Patience = SILENT["vault"],
    ) -> None:
        self._on_sealed, self.patience, self._wanted, self.ready_s = on_sealed, patience, spares, ready_s
        self.on_message, self._on_end = on_message, on_end
        self._numbers = itertools.count(1)
        self._forkserver: ForkServer | VaultHostClient | None = None
        self.shape: LinkShape | None = None
        self.slots: LinkSlots | None = None
        self._spares: deque[Vault] = deque()
        self._made: list[Vault] = []  # not sealed at the last check
        self._last_ordered: Vault | None = None
        self._last_taken: Vault | None = None
        self._trouble: CloisterError | None = None
        self._looking: asyncio.Task[None] | None = None

    def open(self, forkserver: ForkServer | VaultHostClient, shape: LinkShape, slots: LinkSlots | None = None) -> None:
        self._forkserver, self.shape, self.slots = forkserver, shape, slots
        if slots is not None:
            slots.on_free = self._one_more
        self._refill()

    def take(self) -> Vault:
        vault = self._spares.popleft() if self._spares else self._fork()
        asyncio.get_running_loop().call_soon(self._refill)
        vault.taken_at = monotonic()
        self._last_taken = vault
        return vault

    async def try_one(self) -> None:
        vault = self._spares[0] if self._spares else self._fork()
        await vault.tried.wait()
        if vault not in self._spares:
            vault.close()

    @property
    def trouble(self) -> CloisterError | None:
        """Why there are no vaults; None if the last one ordered is sealed, or another was since the last failure."""
        last = self._last_ordered
        return self._trouble if last is None or last.sealed_at is None else None

    @property
    def can_be_had(self) -> bool:
        return self._forkserver is not None and self.trouble is None

    @property
    def has_one_beside_the_last(self) -> bool:
        """Where fewer than two spares are kept: whether all of them are sealed."""
        return self._sealed_spares >= min(2, self._wanted)

    @property
    def has_one_soon(self) -> bool:
        self._made = [vault for vault in self._made if vault.open and vault.sealed_at is None]
        return self._sealed_spares > 0 or (len(self._made) < MOST_MADE_AT_ONCE and self._has_place)

    @property
    def has_one_to_take(self) -> bool:
        return bool(self._spares) or self._has_place

    @property
    def _has_place(self) -> bool:
        return self.slots is None or self.slots.free > 0

    @property
    def _sealed_spares(self) -> int:
        return sum(vault.sealed_at is not None for vault in self._spares)

    @property
    def ready_ms(self) -> float | None:
        vault = self._last_ordered
        return None if vault is None or vault.sealed_at is None else 1000 * (vault.sealed_at - vault.ordered_at)

    @property
    def wait_ms(self) -> float | None:
        vault = self._last_taken
        if vault is None or vault.sealed_at is None or vault.taken_at is None:
            return None
        return 1000 * max(vault.sealed_at - vault.taken_at, 0.0)

    def close(self, wait_s: float = 0.0) -> None:
        self._forkserver = None
        while self._spares:
            self._spares.popleft().close(wait_s)

    def _refill(self) -> None:
        """Few at a time: vaults for waiting sessions are made meanwhile."""
        while self._forkserver is not None and len(self._spares) < self._wanted and self._has_place:
            if len(self._spares) - self._sealed_spares >= MOST_MADE_AT_ONCE:
                return  # the next one that is sealed calls again
            self._spares.append(self._fork())

    def _fork(self) -> Vault:
        if self._forkserver is None or self.shape is None:
            raise ServiceUnavailable("The server is restarting.", hint="Try again in a few seconds.")
        self._last_ordered = Vault(next(self._numbers), self._forkserver, self.shape, self)
        self._made.append(self._last_ordered)
        return self._last_ordered

    def sealed(self) -> None:
        self._trouble = None
        self._one_more()

    def _one_more(self) -> None:
        self._refill()
        self._on_sealed()

    def ended(self, vault: Vault) -> None:
        if vault.trouble is not None and str(vault.trouble) != str(self._trouble):
            log.error("There are no vaults. %s", vault.trouble)  # once, although it is tried again and again
        if isinstance(vault.trouble, ProtocolError) and isinstance(self._forkserver, VaultHostClient):
            self._forkserver.doubt()
        self._trouble = vault.trouble or (None if vault.sealed_at is not None else NEVER_SEALED)
        again = asyncio.get_running_loop().call_later
        if vault in self._spares:
            self._spares.remove(vault)
            again(SECONDS_BEFORE_REPLACING_A_DEAD_SPARE, self._refill)
        else:
            self._on_end(vault)
            if not self._wanted and self._trouble is not None:
                # No spare vault is made that would show when vaults can be made again.
                again(SECONDS_BEFORE_REPLACING_A_DEAD_SPARE, self._look_again)

    def _look_again(self) -> None:
        if self._forkserver is not None and self.trouble is not None and self._looking is None:
            self._looking = asyncio.create_task(self.try_one())
            self._looking.add_done_callback(self._looked)

    def _looked(self, looking: asyncio.Task[None]) -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()  # perhaps no slot is free now; the next session tries again
