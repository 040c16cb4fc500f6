"""Natural traffic of several tenants, drawn from a seed: real system prompts, questions and texts where a data folder
has them, else a small sample of our own. No text is chosen by a detector, and none is marked."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

from cloister.files import needed
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
    systems = [row["prompt"] for row in csv.DictReader(_lines(data / "injection/awesome_chatgpt_prompts.csv"))]
    turns = [tuple(json.loads(line)["turns"]) for line in _lines(data / "chat/mt_bench_question.jsonl")]
    asked = [json.loads(line)["prompt"] for line in _lines(data / "chat/arena_hard_v0.1_question.jsonl")]
    asked += [row["user_query"] for row in csv.DictReader(_lines(data / "pii/pupa_tnb.csv"))]
    asked += [json.loads(line)["question"] for line in _lines(data / "longctx/nq_open_oracle_500.jsonl")]
    articles = json.loads("".join(_lines(data / "longctx/xquad_en.json")))["data"]
    asked += [one["question"] for article in articles for part in article["paragraphs"] for one in part["qas"]]
    filler = "".join(_lines(data / "longctx/wikitext2_raw_test.txt"))
    return Texts(tuple(systems), (*turns, *((one,) for one in asked)), filler)


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


def _lines(file: Path) -> Iterator[str]:
    with needed(f"{file.name} cannot be read", "See --data."), file.open(encoding="utf-8", newline="") as opened:
        yield from opened
