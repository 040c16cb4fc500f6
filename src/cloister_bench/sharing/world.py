"""A node without a model, for attackers to ask: the real tokenizer, detector, votes, noise, templates and radix tree
over a pool of empty blocks. Exact: an answer has what was found and what `cached_tokens` would report, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import NamedTuple

from cloister.config import ControllerSettings
from cloister.controller.sharing import Sharing
from cloister.detection.pipeline import inherit, shipped_pipeline
from cloister.engine.runner import BlockPool
from cloister.gateway.completions import text_by_block
from cloister.levels import PolicyName
from cloister.messages.controller_detector import Label
from cloister.messages.controller_service import GeneratePrompt
from cloister.messages.types import SamplingParams
from cloister.prefix.base import Paging, PrefixKey
from cloister.prefix.monitor import Monitor
from cloister.prefix.radix import RadixCache
from cloister.prefix.templates import ALL, Template
from cloister.prompts.tokenizer import Tokenizer

PAGE = 16
BLOCKS = 1024
NO_NOISE = 1e9  # an ε at which Laplace(1/ε) moves no count
Tokens = tuple[int, ...]
_PARAMS = SamplingParams(max_tokens=1)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the attacked node was started with, and how fast it computes; every attacker knows it."""

    policy: PolicyName = "counted"
    epsilon: float = 1.0
    threshold: int = 12
    veto: bool = True
    grid_ms: int = 100
    ms_per_token: float = 1.0

    @property
    def shows_all(self) -> bool:
        """No detector hides candidates from all looks."""
        return not (self.policy == "safekv" or (self.policy == "counted" and self.veto))

    def milliseconds(self, computed: int) -> float:
        """When a first token leaves; on a grid, at its next line."""
        exact = self.ms_per_token * computed
        return exact if not self.grid_ms else -(-exact // self.grid_ms) * self.grid_ms


class Seen(NamedTuple):
    """Pages that were found, and those of them that the answer reports."""

    found: int
    reported: int


class Reader:
    """Labels are kept: a prompt is asked many times."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._read: dict[str, Tokens] = {}
        self._passed: dict[Tokens, int] = {}

    def tokens(self, text: str) -> Tokens:
        if text not in self._read:
            self._read[text] = tuple(self._tokenizer.encode(text))
        return self._read[text]

    def passed(self, tokens: Tokens) -> int:
        """How many of the first tokens are in blocks without anything private."""
        if tokens not in self._passed:
            text, ends = text_by_block(tokens, self._tokenizer, PAGE)
            labels = [one.label for one in inherit(shipped_pipeline().examine(text, ends).verdicts)]
            clean = next((at for at, label in enumerate(labels) if label is not Label.PUBLIC), len(labels))
            self._passed[tokens] = min(PAGE * clean, len(tokens))
        return self._passed[tokens]


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
    """`registered`: the beginning of a template that is registered for all accounts."""

    setting: Setting
    reader: Reader
    secret: bytes
    registered: Tokens = ()
    blocks: int = BLOCKS
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._sharing = Sharing(node_settings(self.setting), lambda: PAGE, self.secret)
        if self.registered:
            self._sharing.register([Template("common", (ALL,), "0" * 64, self.registered)])
        self.restart()

    def restart(self) -> None:
        """Of the service: its cache is empty, the controller's counts stay."""
        self._pool = BlockPool(self.blocks)
        self._cache = RadixCache(monitor=Monitor(clock=lambda: 0.0))
        self._cache.attach(self._pool, PAGE)

    def ask(self, tenant: str, prompt: Tokens, *, pages: int | None = None, marked: bool = False) -> Seen:
        """`pages`: these first pages alone, and a token; they are not read again, since what the detector held of the
        victim's prompt is not shared, whatever it makes of a beginning. `marked`: with `"public": true`."""
        tokens = prompt if pages is None else prompt[: pages * PAGE + 1]
        public = len(tokens) if marked else 0
        paging, number, policy = Paging(public, len(tokens), PAGE), next(self._numbers), self.setting.policy
        key = PrefixKey(number, tenant, "", policy, paging, paging.pack(tokens))
        most = paging.pages(len(tokens) - 1)
        self._cache.prefetch(key, most)
        if self._sharing.labels:
            order = GeneratePrompt(number, tenant, tokens, _PARAMS, public, "", policy)
            passed = min(self.reader.passed(prompt), len(tokens)) if self._sharing.waits else len(tokens)
            label = self._sharing.label(order, passed)
            self._cache.label(number, label.public_tokens, label.registered, final=label.final)
        found = self._cache.lookup(key, most)
        missing = paging.pages(len(tokens)) - len(found.blocks)
        if missing > self._pool.free:
            self._cache.evict(missing - self._pool.free)
        blocks = [*found.blocks, *(self._pool.allocate(missing) or ())]
        self._cache.insert(key, blocks)
        self._pool.release(blocks)
        return Seen(len(found.blocks), found.shown)

    def pass_time(self, tenant: str) -> None:
        """The tenant sends requests that are too short to be cached: what others use after them was used later."""
        key = PrefixKey(next(self._numbers), tenant, "", self.setting.policy, Paging(0, 0, PAGE), b"")
        for _ in range(RadixCache.lookups_per_epoch):
            self._cache.lookup(key, 0)
