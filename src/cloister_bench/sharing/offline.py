"""What each policy finds of a workload, without a model, in a pool of the served size. A prompt waits for its label, as
at `shared`. Answers are not kept: the service computes them again in spare time, which this traffic does not leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

from cloister.cli.templates import beginning
from cloister.levels import PolicyName
from cloister.prefix.public_pages import ALL, Template
from cloister_bench.sharing.workloads import Workload
from cloister_bench.sharing.world import PAGE, Reader, Setting, Tokens, World

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
    tenant: str
    tokens: Tokens
    at: float


def templates_of(workload: Workload, reader: Reader) -> list[Template]:
    begins = (beginning(reader.tokenizer, [{"role": "system", "content": text}]) for text in workload.systems)
    return [Template(str(number), (ALL,), "0" * 64, tokens) for number, tokens in enumerate(begins)]


def prompts_of(workload: Workload, reader: Reader, on_prompt: Callable[[], None] = lambda: None) -> list[Prompt]:
    prompts = []
    for which, turn in workload.turns:
        chat = workload.chats[which]
        tokens = tuple(reader.tokenizer.render_chat(chat.messages(turn)))
        reader.passed(tokens)  # kept for every policy
        prompts.append(Prompt(f"tenant-{chat.tenant}", tokens, chat.times[turn]))
        on_prompt()
    return prompts


def replay(
    prompts: Sequence[Prompt], reader: Reader, templates: Sequence[Template], variant: Variant, blocks: int
) -> list[int]:
    """How many tokens of each prompt are found."""
    registered = templates if variant.registered else ()
    world = World(Setting(variant.policy, veto=variant.veto), reader, SECRET, registered, blocks, RUNNING)
    for one in prompts if variant.foreseen else ():
        world.vote(one.tenant, one.tokens, reader.passed(one.tokens))
    found = []
    for one in prompts:
        world.now = one.at
        found.append(PAGE * world.ask(one.tenant, one.tokens).found)
    return found
