"""A node without a model, for attackers and workloads to ask: the real tokenizer, detector, votes, noise, templates and
radix tree over a pool of empty blocks. Exact: an answer has what was found and what `cached_tokens` would report."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import NamedTuple

from cloister.config import ControllerSettings
from cloister.controller.sharing import Sharing
from cloister.detection.known_prefixes import SYSTEM_PROMPTS, prefixes_of
from cloister.detection.pipeline import inherit, shipped_pipeline
from cloister.gateway.prompt_reader import text_by_block
from cloister.levels import PolicyName
from cloister.messages.controller_detector import Label
from cloister.messages.controller_service import GeneratePrompt, PublicPrefix
from cloister.messages.types import SamplingParams
from cloister.prefix.base import BlockPool, Paging, PrefixKey
from cloister.prefix.public_pages import Template
from cloister.prefix.radix import RadixCache
from cloister.prompts.tokenizer import Tokenizer

PAGE = 16
BLOCKS = 1024
NO_NOISE = 1e9  # an ε at which Laplace(1/ε) moves no count
Tokens = tuple[int, ...]
_PARAMS = SamplingParams(max_tokens=1)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the attacked node was started with; every attacker knows it."""

    policy: PolicyName = "counted"
    epsilon: float = 1.0
    threshold: int = 12
    veto: bool = True
    grid_ms: int = 100

    @property
    def shows_all(self) -> bool:
        """No detector hides candidates from all looks."""
        return not (self.policy == "counted" and self.veto)

    def milliseconds(self, computed: int) -> int:
        """When a first token leaves, at 1 ms for each token of a prompt; on a grid, at its next line."""
        return computed if not self.grid_ms else -(-computed // self.grid_ms) * self.grid_ms


class Seen(NamedTuple):
    """Pages that were found, and those of them that the answer reports."""

    found: int
    reported: int


class Reader:
    """Labels are kept: a prompt is asked many times."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self._pipeline = tokenizer, shipped_pipeline()
        self._pipeline.known_prefixes = (*SYSTEM_PROMPTS, *prefixes_of(tokenizer))
        self._known: dict[Tokens, int] = {}

    def tokens(self, text: str) -> Tokens:
        return tuple(self.tokenizer.encode(text))

    def passed(self, tokens: Tokens) -> int:
        """How many of the first tokens are in blocks without anything private."""
        if tokens not in self._known:
            text, ends = text_by_block(tokens, self.tokenizer, PAGE)
            examined = self._pipeline.examine(text, ends)
            labels = [one.label for one in inherit(examined.verdicts)]
            clean = next((at for at, label in enumerate(labels) if label is not Label.PUBLIC), len(labels))
            self._known[tokens] = min(PAGE * clean, len(tokens))
        return self._known[tokens]


@cache
def node_settings(setting: Setting) -> ControllerSettings:
    return ControllerSettings(
        shared_policy=setting.policy,
        share_epsilon=setting.epsilon,
        share_threshold=setting.threshold,
        detector=setting.veto,
        quantise_ttft_ms=setting.grid_ms,
    )


@dataclass
class World:
    """`registered`: templates. The last `running` requests hold their blocks, each with its last page in part."""

    setting: Setting
    reader: Reader
    secret: bytes
    registered: Sequence[Template] = ()
    blocks: int = BLOCKS
    running: int = 0
    now: float = 0.0
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._sharing = Sharing(node_settings(self.setting), lambda: PAGE, self.secret)
        self._sharing.register(self.registered)
        self.restart()

    def restart(self) -> None:
        """Of the service: its cache is empty, the controller's counts stay."""
        self._pool, self._held = BlockPool(self.blocks), deque[list[int]]()
        self._cache = RadixCache()
        self._cache.attach(self._pool, PAGE)

    def vote(self, tenant: str, tokens: Tokens, passed: int, number: int = 0, public: int = 0) -> PublicPrefix:
        order = GeneratePrompt(number, tenant, tokens, _PARAMS, public, "", self.setting.policy)
        return self._sharing.label(order, min(passed, len(tokens)) if self._sharing.waits else len(tokens))

    def ask(self, tenant: str, prompt: Tokens, *, pages: int | None = None, marked: bool = False) -> Seen:
        """`pages`: these first pages alone, and a token; they are not read again, since what the detector held of the
        victim's prompt is not shared, whatever it makes of a beginning. `marked`: with `"public": true`."""
        tokens = prompt if pages is None else prompt[: pages * PAGE + 1]
        public = len(tokens) if marked else 0
        paging, number = Paging(public, len(tokens), PAGE), next(self._numbers)
        key = PrefixKey(number, tenant, "", self.setting.policy, paging, paging.pack(tokens))
        most = paging.pages(len(tokens) - 1)  # a prompt's last token is always computed
        self._cache.expect(key)
        if self._sharing.labels:
            label = self.vote(tenant, tokens, self.reader.passed(prompt), number, public)
            self._cache.label(number, label.public_tokens, label.registered)
        found, whole = self._cache.lookup(key, most), paging.pages(len(tokens))
        blocks = [*found.blocks, *self._room((-(-len(tokens) // PAGE) if self.running else whole) - len(found.blocks))]
        self._cache.insert(key, blocks[:whole])
        self._held.append(blocks)
        if len(self._held) > self.running:
            self._pool.release(self._held.popleft())
        return Seen(len(found.blocks), found.shown)

    def _room(self, missing: int) -> list[int]:
        while True:
            if missing > self._pool.free:
                self._cache.evict(missing - self._pool.free)
            if (new := self._pool.allocate(missing)) is not None:
                return new
            self._pool.release(self._held.popleft())

    def pass_time(self, tenant: str) -> None:
        """The tenant sends requests that are too short to be cached: what others use after them was used later."""
        key = PrefixKey(next(self._numbers), tenant, "", self.setting.policy, Paging(0, 0, PAGE), b"")
        for _ in range(RadixCache.lookups_per_epoch):
            self._cache.lookup(key, 0)
