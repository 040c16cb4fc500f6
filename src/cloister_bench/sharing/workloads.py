"""What tenants ask, made from a seed: the paper's three workloads (SafeKV §VII-C), and scaled traces of real traffic.
Texts are sentences that a detector can read, about a third private; system prompts are marked as public."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from cloister.errors import SetupError
from cloister_bench.sharing.prompts import OPENING, nonce, private_sentence, sentences

Messages = list[dict[str, Any]]
PRIVATE_SHARE = 0.33
ANSWER = "Here is what you asked for, in a few words: first the one, then the other, and nothing else after that."


@dataclass(frozen=True, slots=True)
class Session:
    """Each is sent when the one before is answered, the first after `at` seconds."""

    tenant: int
    turns: tuple[Messages, ...]
    output_tokens: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`users`: sessions under way at once; 0 where `at` says when each begins."""

    name: str
    sessions: tuple[Session, ...]
    users: int

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)


@dataclass(frozen=True, slots=True)
class Scale:
    """The first `trace_requests` over `trace_seconds`; a Mooncake block (512 tokens) is a sentence, at most 48."""

    pii_requests: int = 48
    chats: int = 12
    chat_turns: int = 4
    tenants: int = 32
    system_tokens: int = 1024
    system_turns: int = 2
    output_tokens: int = 16
    users: int = 4
    trace_requests: int = 60
    trace_seconds: float = 60.0
    shrink: int = 32
    azure_shrink: int = 4


QUICK = Scale(4, 2, 2, 4, 64, 1, 4, 2, 6, 2.0, 64, 64)
MOST_BLOCKS = 48

Make = Callable[[Scale, random.Random, Path | None], Workload]


def pii(scale: Scale, draw: random.Random, data: Path | None) -> Workload:
    """Single requests, short, each with something private: nothing to find, not even a model's own system prompt."""
    questions = _pii_questions(data, draw)
    sessions = tuple(
        Session(number % scale.tenants, ([_own(draw), _user(next(questions))],), scale.output_tokens)
        for number in range(scale.pii_requests)
    )
    return Workload("pii", sessions, scale.users)


def chat(scale: Scale, draw: random.Random, data: Path | None) -> Workload:
    """Conversations that grow, under a short common system prompt; in some turns with private text."""
    system = _system(draw, 96)
    sessions = []
    for number in range(scale.chats):
        said: Messages = [system]
        turns = []
        for _ in range(scale.chat_turns):
            private = private_sentence(draw) + " " if draw.random() < PRIVATE_SHARE else ""
            said = [*said, _user(f"{private}{sentences(draw, 40)}")]
            turns.append(said)
            said = [*said, {"role": "assistant", "content": ANSWER}]
        sessions.append(Session(number % scale.tenants, tuple(turns), scale.output_tokens))
    return Workload("chat", tuple(sessions), scale.users)


def system_prompt(scale: Scale, draw: random.Random, data: Path | None) -> Workload:
    """One long system prompt for all tenants, and each one's own question, which holds something private."""
    system = _system(draw, scale.system_tokens)
    sessions = tuple(
        Session(
            tenant,
            tuple(
                [system, _user(f"{private_sentence(draw)} {sentences(draw, 28)}")] for _ in range(scale.system_turns)
            ),
            scale.output_tokens,
        )
        for tenant in range(scale.tenants)
    )
    return Workload("system-prompt", sessions, scale.users)


def mooncake(scale: Scale, draw: random.Random, data: Path | None) -> Workload:
    """Blocks with one hash are one text. What shares more than its first block is a conversation, and a tenant's."""
    rows = list(islice(_lines(data, "mooncake_conversation_trace.jsonl"), scale.trace_requests))
    made = [json.loads(row) for row in rows]
    sessions = []
    for at, row in zip(_spread([row["timestamp"] for row in made], scale.trace_seconds), made, strict=True):
        ids: list[int] = row["hash_ids"][:MOST_BLOCKS]
        tenant = (ids[1] if len(ids) > 1 else ids[0]) % scale.tenants
        text = " ".join(_block(number, private=place == 1) for place, number in enumerate(ids))
        sessions.append(Session(tenant, ([_user(text)],), max(2, row["output_length"] // scale.shrink), at))
    return Workload("mooncake", tuple(sessions), 0)


def azure(scale: Scale, draw: random.Random, data: Path | None) -> Workload:
    """Requests of the Azure trace by their lengths and times; their texts are not known, so nothing is found twice."""
    rows = list(islice(csv.DictReader(_lines(data, "AzureLLMInferenceTrace_conv.csv")), scale.trace_requests))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    sessions = []
    for at, row in zip(_spread(times, scale.trace_seconds), rows, strict=True):
        tokens = int(row["ContextTokens"]) // scale.azure_shrink
        private = private_sentence(draw) + " " if draw.random() < PRIVATE_SHARE else ""
        output = max(2, int(row["GeneratedTokens"]) // scale.azure_shrink)
        prompt = [_own(draw), _user(f"{private}{sentences(draw, tokens)}")]
        sessions.append(Session(draw.randrange(scale.tenants), (prompt,), output, at))
    return Workload("azure", tuple(sessions), 0)


WORKLOADS: dict[str, Make] = {
    "pii": pii,
    "chat": chat,
    "system-prompt": system_prompt,
    "mooncake": mooncake,
    "azure": azure,
}
TRACES = frozenset(("mooncake", "azure"))


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _system(draw: random.Random, tokens: int) -> dict[str, Any]:
    return {"role": "system", "content": f"{OPENING} {sentences(draw, tokens)}", "public": True}


def _own(draw: random.Random) -> dict[str, Any]:
    return {"role": "system", "content": nonce(draw)}


def _block(number: int, *, private: bool) -> str:
    """The text of block `number`, the same for every tenant; a conversation's own first block may be private."""
    draw = random.Random(number)
    text = sentences(draw, 16)
    return f"{private_sentence(draw)} {text}" if private and draw.random() < PRIVATE_SHARE else text


def _spread(times: Sequence[float], seconds: float) -> list[float]:
    first, length = min(times, default=0.0), max(times, default=0.0) - min(times, default=0.0)
    return [(at - first) / length * seconds if length else 0.0 for at in times]


def _pii_questions(data: Path | None, draw: random.Random) -> Iterator[str]:
    if data is not None and (file := data / "pii" / "presidio_synth_dataset_v2.json").exists():
        texts = [row["full_text"] for row in json.loads(file.read_text("utf-8")) if row["spans"]]
        draw.shuffle(texts)
        yield from texts
    while True:
        yield private_sentence(draw)


def _lines(data: Path | None, name: str) -> Iterator[str]:
    if data is None:
        raise SetupError(f"{name} is not part of this repository.", hint="Say where it is with --data.")
    try:
        with (data / "chat" / name).open(encoding="utf-8") as file:
            yield from file
    except OSError as wrong:
        raise SetupError(f"{name} cannot be read: {wrong.strerror}.", hint="See --data.") from None
