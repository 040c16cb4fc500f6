"""Natural traffic by seed (system prompts and questions that others published, or else a small sample of our own), and
what each policy finds of it in a pool of the served size, without a model. No text is chosen by a detector, and none is
marked."""

import random
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, get_args

from cloister.cli.cache import beginning
from cloister.levels import PolicyName
from cloister.prefix.public_pages import ALL, Template
from cloister_bench.records import records
from cloister_bench.sharing.world import PAGE, Reader, Setting, Tokens, World
from cloister_bench.words import read_words

WORKLOADS = ("first-chats", "chat")
SYSTEMS = 10
CHATS = 800
RATE = 16.0  # requests a second, in the mean
PAUSE_S = 20.0  # between an answer and the next question, in the mean
ANSWER_CHARACTERS = 128
POOL = 2912  # pages: 1 GiB of the default model's in bf16
RUNNING = 16
SECRET = bytes(32)  # the pages' noise is the same in every run


class Texts(NamedTuple):
    """`questions`: each the turns of one chat."""

    systems: list[str]
    questions: list[list[str]]


class Request(NamedTuple):
    """`at`: when it is sent, in seconds."""

    tenant: str
    messages: list[dict[str, Any]]
    at: float


def read_texts(data: Path | None) -> Texts:
    """Questions with personal data (PUPA) are among them."""
    if data is None:
        sample = read_words("traffic")
        return Texts(sample["SYSTEMS"], [[one] for one in sample["QUESTIONS"]])
    systems = [row["prompt"] for row in records(data / "injection/awesome_chatgpt_prompts.csv")]
    turns = [row["turns"] for row in records(data / "chat/mt_bench_question.jsonl")]
    asked = [row["prompt"] for row in records(data / "chat/arena_hard_v0.1_question.jsonl")]
    asked += [row["user_query"] for row in records(data / "pii/pupa_tnb.csv")]
    asked += [row["question"] for row in records(data / "longctx/nq_open_oracle_500.jsonl")]
    articles = records(data / "longctx/xquad_en.json")["data"]
    asked += [one["question"] for article in articles for part in article["paragraphs"] for one in part["qas"]]
    return Texts(systems, [*turns, *([one] for one in asked)])


def requests(texts: Texts, workload: str, draw: random.Random, tenants: int, chats: int = CHATS) -> list[Request]:
    """Chats of two questions, begun at random times (Poisson). Each tenant has one system prompt; the k-th prompt has
    1/k of the first one's tenants (Zipf). In `first-chats` each tenant has one chat, so that none finds a page that it
    computed itself. No first question comes twice before all came."""
    systems = draw.sample(texts.systems, min(SYSTEMS, len(texts.systems)))
    apps = draw.choices(systems, [1 / rank for rank in range(1, len(systems) + 1)], k=tenants)
    first = workload == "first-chats"
    callers = draw.sample(range(tenants), tenants) if first else draw.choices(range(tenants), k=chats)
    made, at = [], 0.0
    questions = cycle(draw.sample(texts.questions, len(texts.questions)))
    for caller, (one, *more) in zip(callers, questions, strict=False):
        at += draw.expovariate(RATE / 2)
        tenant, begun = f"tenant-{caller}", [_said("system", apps[caller]), _said("user", one)]
        answer, following = (draw.choice(texts.questions)[0] for _ in range(2))
        turn = [_said("assistant", answer[:ANSWER_CHARACTERS]), _said("user", more[0] if more else following)]
        made.append(Request(tenant, begun, at))
        made.append(Request(tenant, [*begun, *turn], at + draw.expovariate(1 / PAUSE_S)))
    return sorted(made, key=lambda request: request.at)


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


class Variant(NamedTuple):
    """`registered`: the workload's system prompts, for all. `foreseen`: its votes are cast before it begins."""

    policy: PolicyName
    registered: bool = False
    veto: bool = True
    foreseen: bool = False


VARIANTS: dict[str, Variant] = {policy: Variant(policy, policy == "registered") for policy in get_args(PolicyName)}
VARIANTS["counted+registered"] = Variant("counted", registered=True)
# What count alone loses, cause by cause; the rest are pages that too few accounts send.
VARIANTS["counted, votes known"] = Variant("counted", foreseen=True)
VARIANTS["counted, votes known, no veto"] = Variant("counted", veto=False, foreseen=True)


class Prompt(NamedTuple):
    tenant: str
    tokens: Tokens
    at: float


def templates_of(asked: Sequence[Request], reader: Reader) -> list[Template]:
    """What an operator would register: the system prompts."""
    systems = dict.fromkeys(request.messages[0]["content"] for request in asked)
    begins = (beginning(reader.tokenizer, [_said("system", text)]) for text in systems)
    return [Template(str(number), (ALL,), "0" * 64, tokens) for number, tokens in enumerate(begins)]


def prompts_of(asked: Sequence[Request], reader: Reader, on_prompt: Callable[[], None]) -> list[Prompt]:
    prompts = []
    for tenant, messages, at in asked:
        tokens = tuple(reader.tokenizer.render_chat(messages))
        reader.passed(tokens)  # kept for every policy
        prompts.append(Prompt(tenant, tokens, at))
        on_prompt()
    return prompts


def replay(
    prompts: Sequence[Prompt], reader: Reader, templates: Sequence[Template], variant: Variant, pool: int = POOL
) -> list[int]:
    """How many tokens of each prompt are found."""
    registered = templates if variant.registered else ()
    world = World(Setting(variant.policy, veto=variant.veto), reader, SECRET, registered, pool, RUNNING)
    for one in prompts if variant.foreseen else ():
        world.vote(one.tenant, one.tokens, reader.passed(one.tokens))
    found = []
    for one in prompts:
        world.now = one.at
        found.append(PAGE * world.ask(one.tenant, one.tokens).found)
    return found
