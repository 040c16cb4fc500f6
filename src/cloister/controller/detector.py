"""The handle on the detector. A text is answered once: PRIVATE if it is absent, busy, late; costs hits, no privacy."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from cloister.config import ControllerSettings
from cloister.errors import ProtocolError, SetupError
from cloister.messages import controller_detector as wire
from cloister.process.handle import ModuleHandle
from cloister.process.supervisor import Supervisor, cancelled
from cloister.transparency.note import VerifierKey

if TYPE_CHECKING:
    from cloister.detection.signed_rules import SignedRules

log = logging.getLogger(__name__)
DETECTOR = "cloister.detection"
MAX_PENDING = 256
MAX_PENDING_CHARACTERS = 16 << 20
RULES_EVERY_S = 2.0


OnLabels = Callable[[wire.Labels], None]


def find_detector(settings: ControllerSettings, on_labels: OnLabels) -> "DetectorKeeper | None":
    """Not started yet. SetupError where its rules are of no use."""
    if not settings.detector:
        return None
    rules = None
    if settings.detector_rules is not None:
        if settings.detector_key is None:
            raise SetupError("Rules are taken only if they are signed.", hint="Name the signer's key: --detector-key.")
        from cloister.detection.signed_rules import SignedRules  # brings the matcher and numpy along

        rules = SignedRules(settings.detector_rules, VerifierKey.parse(settings.detector_key))
    return DetectorKeeper(on_labels, rules=rules, allow_degraded=settings.allow_degraded_sandbox)


class DetectorKeeper:
    """`on_labels` is called once for each text, from the event loop. `rules`: an operator's own, watched."""

    def __init__(
        self,
        on_labels: OnLabels,
        *,
        rules: "SignedRules | None" = None,
        allow_degraded: bool = False,
        module: str = DETECTOR,
    ) -> None:
        self._on_labels, self._rules, self._allow_degraded = on_labels, rules, allow_degraded
        self._openings: tuple[str, ...] = ()
        self._module = module
        self._handle: ModuleHandle[wire.DetectorReady] | None = None
        self._pending: dict[int, tuple[int, int]] = {}
        self._pending_characters = 0
        self.supervisor = Supervisor("detector", self._start, self._lost)
        self._watching: asyncio.Task[None] | None = None
        self.up = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._handle.pid if self._handle is not None else None

    def start(self) -> None:
        self.supervisor.keep()
        if self._watching is None and self._rules is not None:
            self._watching = asyncio.create_task(self._rules.watch(RULES_EVERY_S, self._load_rules))

    def know(self, openings: tuple[str, ...]) -> None:
        self._openings = openings
        if self.up.is_set() and self._handle is not None:
            self._handle.send(wire.KnowOpenings(openings))

    def classify(self, request_id: int, text: str, ends: Sequence[int]) -> None:
        """`ends`: where each block ends in the text, in characters. The answer comes later."""
        blocks = len(ends)
        full = len(self._pending) >= MAX_PENDING or self._pending_characters + len(text) > MAX_PENDING_CHARACTERS
        unfit = len(text) > wire.MAX_TEXT or blocks > wire.MAX_BLOCKS or request_id in self._pending
        if not self.up.is_set() or self._handle is None or full or unfit:
            asyncio.get_running_loop().call_soon(self._on_labels, held_back(request_id, blocks))
            return
        self._pending[request_id] = (blocks, len(text))
        self._pending_characters += len(text)
        self._handle.send(wire.Classify(request_id, text, tuple(ends)))

    async def close(self) -> None:
        await self.supervisor.close()
        await cancelled(self._watching)
        await self._clean_up()

    async def _clean_up(self) -> None:
        self.up.clear()
        if self._handle is not None:
            await self._handle.close()
        pending, self._pending, self._pending_characters = self._pending, {}, 0
        for request_id, (blocks, _) in pending.items():
            self._on_labels(held_back(request_id, blocks))

    async def _lost(self) -> None:
        log.warning("Prompts stay private until the detector is back.")
        await self._clean_up()

    async def _start(self) -> None:
        handle = self._handle = ModuleHandle(
            "detector",
            self._module,
            wire.FromDetector,
            wire.DetectorReady,
            handle=self._hear,
            on_end=self.supervisor.ended,
        )
        rules = self._rules.text if self._rules else ""
        handle.send(wire.StartDetector(rules, self._allow_degraded))
        await handle.ready
        handle.send(wire.KnowOpenings(self._openings))
        self.up.set()

    def _load_rules(self, rules: str) -> None:
        if self.up.is_set() and self._handle is not None:
            self._handle.send(wire.LoadRules(rules))

    def _hear(self, message: msgspec.Struct) -> None:
        if isinstance(message, wire.RulesLoaded):
            if message.taken:
                log.info("The detector has %d rules.", message.rules)
            else:
                place = f"rule {message.rule}" if message.rule else "the file"
                log.error("New rules were not taken (%s: %s); the rules before stay.", place, message.wrong)
            return
        if not isinstance(message, wire.Labels) or message.request_id not in self._pending:
            raise ProtocolError("The detector labels a text that it was not given.")
        check_labels(message, self._pending[message.request_id][0])
        self._pending_characters -= self._pending.pop(message.request_id)[1]
        self._on_labels(message)


def held_back(request_id: int, blocks: int) -> wire.Labels:
    """No detector has read the text: all its blocks are PRIVATE."""
    return wire.Labels(request_id, bytes(blocks), bytes(blocks), bytes([wire.Category.NONE]) * blocks)


def check_labels(message: wire.Labels, blocks: int) -> None:
    """As many as asked for, known codes, nothing public behind what is not."""
    if not len(message.labels) == len(message.tiers) == len(message.categories) == blocks:
        raise ProtocolError("The detector did not label every block.")
    if not set(message.labels) <= set(wire.Label) or not set(message.categories) <= set(wire.Category):
        raise ProtocolError("The detector used an unknown label.")
    if any(other > one for one, other in pairwise(message.labels)):
        raise ProtocolError("The detector called a block public behind one that is not.")
