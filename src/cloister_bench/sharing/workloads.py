"""Natural traffic of several tenants, drawn from a seed (real system prompts, questions and texts where a data folder
has them, else a small sample of our own), and what each policy finds of it in a pool of the served size, without a
model. No text is chosen by a detector, and none is marked."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any, NamedTuple, get_args

from cloister.cli.cache import beginning
from cloister.levels import PolicyName
from cloister.prefix.public_pages import ALL, Template
from cloister_bench.records import records
from cloister_bench.sharing.world import PAGE, Reader, Setting, Tokens, World
from cloister_bench.words import read_words

CHARACTERS = 4  # of a token, about: filler is cut by it
SYSTEMS = 10
PAUSE_S = 20.0  # between an answer and the next question, in the mean
OUTPUT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Chat:
    """`times`: when each question is sent, in seconds. `answer` stands in for the model's to all but the last."""

    tenant: int
    system: str
    questions: tuple[str, ...]
    times: tuple[float, ...]
    answer: str = ""

    def messages(self, turn: int) -> list[dict[str, Any]]:
        said = [("system", self.system)]
        for question in self.questions[:turn]:
            said += [("user", question), ("assistant", self.answer)]
        return [{"role": role, "content": text} for role, text in (*said, ("user", self.questions[turn]))]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    tenants: int
    chats: tuple[Chat, ...]

    @property
    def systems(self) -> tuple[str, ...]:
        """What an operator would register."""
        return tuple(dict.fromkeys(chat.system for chat in self.chats))

    @property
    def turns(self) -> list[tuple[int, int]]:
        """Chat and question, in the order in which they are sent."""
        every = [(at, number, turn) for number, chat in enumerate(self.chats) for turn, at in enumerate(chat.times)]
        return [(number, turn) for _, number, turn in sorted(every)]


@dataclass(frozen=True, slots=True)
class Scale:
    """`requests`: chats; `rate`: the mean of requests a second."""

    requests: int = 800
    rate: float = 16.0


@dataclass(frozen=True, slots=True)
class Texts:
    """`questions`: each the turns of one chat."""

    systems: tuple[str, ...]
    questions: tuple[tuple[str, ...], ...]
    filler: str

    def cut(self, draw: random.Random, tokens: int) -> str:
        """A piece of text from a random place."""
        length = max(1, tokens) * CHARACTERS
        start = draw.randrange(max(1, len(self.filler) - length))
        return self.filler[start : start + length].strip() or "…"

    def apps(self, draw: random.Random, tenants: int) -> list[str]:
        """The system prompt of each tenant; the k-th has 1/k of the first one's tenants (Zipf)."""
        systems = draw.sample(self.systems, min(SYSTEMS, len(self.systems)))
        return draw.choices(systems, [1 / rank for rank in range(1, len(systems) + 1)], k=tenants)


def read_texts(data: Path | None) -> Texts:
    """Questions with personal data (PUPA) are among them."""
    if data is None:
        systems, asked = (read_words("traffic")[name] for name in ("SYSTEMS", "QUESTIONS"))
        return Texts(tuple(systems), tuple((one,) for one in asked), " ".join(systems + asked))
    read = partial(_records, data)
    systems = [row["prompt"] for row in read("injection/awesome_chatgpt_prompts.csv")]
    turns = [tuple(row["turns"]) for row in read("chat/mt_bench_question.jsonl")]
    asked = [row["prompt"] for row in read("chat/arena_hard_v0.1_question.jsonl")]
    asked += [row["user_query"] for row in read("pii/pupa_tnb.csv")]
    asked += [row["question"] for row in read("longctx/nq_open_oracle_500.jsonl")]
    articles = read("longctx/xquad_en.json")["data"]
    asked += [one["question"] for article in articles for part in article["paragraphs"] for one in part["qas"]]
    filler = read("longctx/wikitext2_raw_test.txt")
    return Texts(tuple(systems), (*turns, *((one,) for one in asked)), filler)


def _records(data: Path, name: str) -> Any:
    return records(data / name)


def chats(texts: Texts, scale: Scale, draw: random.Random, tenants: int, *, first: bool = False) -> Workload:
    """Of two questions, begun at random times (Poisson); with `first`, one chat for each tenant, so that none finds
    a page that it computed itself. No first question comes twice before all came."""
    callers = draw.sample(range(tenants), tenants) if first else draw.choices(range(tenants), k=scale.requests)
    apps, made = texts.apps(draw, tenants), []
    begins = accumulate(draw.expovariate(scale.rate / 2) for _ in callers)
    questions = cycle(draw.sample(texts.questions, len(texts.questions)))
    for at, tenant, asked in zip(begins, callers, questions, strict=False):
        both = asked[:2] if len(asked) > 1 else (asked[0], draw.choice(texts.questions)[0])
        times = at, at + draw.expovariate(1 / PAUSE_S)
        made.append(Chat(tenant, apps[tenant], both, times, answer=texts.cut(draw, OUTPUT_TOKENS)))
    return Workload("first-chats" if first else "chat", tenants, tuple(made))


WORKLOADS: dict[str, Callable[[Texts, Scale, random.Random, int], Workload]] = {
    "first-chats": partial(chats, first=True),
    "chat": chats,
}


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
