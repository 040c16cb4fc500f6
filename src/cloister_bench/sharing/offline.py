"""What each policy finds of a workload, without a model: real tokens, detector, votes and radix tree over a pool of the
served size. A prompt waits for its label, as at `shared`; the last RUNNING hold their blocks. Answers are not kept: the
service computes them again in spare time, which this traffic does not leave."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, get_args

from cloister.cli.templates import beginning
from cloister.config import ControllerSettings
from cloister.controller.sharing import Sharing
from cloister.detection.known_prefixes import SYSTEM_PROMPTS, prefixes_of
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
from cloister_bench.sharing.workloads import Workload

PAGE = 16
RUNNING = 16
SECRET = bytes(32)  # the pages' noise is the same in every run


class Variant(NamedTuple):
    """`registered`: the workload's system prompts, for all. `foreseen`: its votes are cast before it begins."""

    policy: PolicyName
    registered: bool = False
    veto: bool = True
    foreseen: bool = False


VARIANTS = {policy: Variant(policy, policy == "registered") for policy in get_args(PolicyName)}
VARIANTS["counted+registered"] = Variant("counted", registered=True)
EXPLAINED = {  # what count alone loses, cause by cause; the rest are pages that too few accounts send
    "counted, no veto": Variant("counted", veto=False),
    "counted, votes known": Variant("counted", foreseen=True),
    "counted, votes known, no veto": Variant("counted", veto=False, foreseen=True),
}


class Prompt(NamedTuple):
    """Of its first `passed` tokens none looks private."""

    order: GeneratePrompt
    passed: int
    at: float


class Reader:
    """`findings`: in all prompts that were read, each once, by rule or category."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._pipeline = tokenizer, shipped_pipeline()
        self._pipeline.known_prefixes = (*SYSTEM_PROMPTS, *prefixes_of(tokenizer))
        self._passed = cache(self._examined)
        self.findings: Counter[str] = Counter()

    def templates(self, workload: Workload, tokenizer_digest: str = "0" * 64) -> list[Template]:
        begins = (beginning(self._tokenizer, [{"role": "system", "content": text}]) for text in workload.systems)
        return [Template(str(number), (ALL,), tokenizer_digest, tokens) for number, tokens in enumerate(begins)]

    def read(self, workload: Workload, on_prompt: Callable[[], None] = lambda: None) -> list[Prompt]:
        prompts = []
        for number, (which, turn) in enumerate(workload.turns):
            chat = workload.chats[which]
            tokens = tuple(self._tokenizer.render_chat(chat.messages(turn)))
            order = GeneratePrompt(number, f"tenant-{chat.tenant}", tokens, SamplingParams())
            prompts.append(Prompt(order, self._passed(tokens), chat.times[turn]))
            on_prompt()
        return prompts

    def _examined(self, tokens: tuple[int, ...]) -> int:
        text, ends = text_by_block(tokens, self._tokenizer, PAGE)
        examined = self._pipeline.examine(text, ends)
        self.findings.update(one.rule or one.category.name.lower() for one in examined.findings)
        labels = [one.label for one in inherit(examined.verdicts)]
        return PAGE * next((at for at, label in enumerate(labels) if label is not Label.PUBLIC), len(labels))


def replay(prompts: Sequence[Prompt], templates: Sequence[Template], variant: Variant, blocks: int) -> list[int]:
    """How many tokens of each prompt are found."""
    sharing = Sharing(ControllerSettings(shared_policy=variant.policy), lambda: PAGE, SECRET)
    sharing.register(templates if variant.registered else ())
    passed = [one.passed if variant.veto else len(one.order.prompt) for one in prompts]
    for one, until in zip(prompts, passed, strict=True) if variant.foreseen else ():
        sharing.label(one.order, until)
    now, pool, running, found = 0.0, BlockPool(blocks), deque[list[int]](), list[int]()
    radix = RadixCache(monitor=Monitor(clock=lambda: now))
    radix.attach(pool, PAGE)
    for one, until in zip(prompts, passed, strict=True):
        now, order, length = one.at, one.order, len(one.order.prompt)
        paging = Paging(0, length, PAGE)
        key = PrefixKey(order.request_id, order.tenant, "", variant.policy, paging, paging.pack(order.prompt))
        most = paging.pages(length - 1)  # a prompt's last token is always computed
        radix.prefetch(key, most)
        if sharing.labels:
            label = sharing.label(order, until)
            radix.label(label.request_id, label.public_tokens, label.registered)
        lent = radix.lookup(key, most).blocks
        found.append(paging.positions(len(lent)))
        missing = -(-length // PAGE) - len(lent)
        while True:
            radix.evict(max(0, missing - pool.free))
            if (new := pool.allocate(missing)) is not None:
                break
            pool.release(running.popleft())
        running.append([*lent, *new])
        radix.insert(key, running[-1][: paging.pages(length)])
        if len(running) > RUNNING:
            pool.release(running.popleft())
    return found
