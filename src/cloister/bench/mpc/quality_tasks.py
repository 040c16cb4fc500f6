"""Tasks whose outcome depends on what is read of a long prompt, and how their outcomes are scored.

Every prompt is cut or filled to exactly `PROMPT_TOKENS`, so that one compiled program serves all. With the shared folder
the texts are real; without it they are generated, and then only the task of retrieval can be expected to be solved.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PROMPT_TOKENS = 1024
CONTINUATION_TOKENS = 48

Kind = Literal["perplexity", "answer", "retrieval"]
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Sample:
    prompt: tuple[int, ...]
    continuation: tuple[int, ...]  # what follows the prompt in truth; of an answer, one of those that are right
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    name: str
    kind: Kind
    samples: list[Sample]


def tasks_of(shared: Path | None, encode: Encode, samples: int) -> list[Task]:
    """The tasks there are texts for."""
    folder = None if shared is None else shared / "data" / "longctx"
    if folder is None or not folder.is_dir():
        return [_continuing("generated_text", _generated_text(), encode, samples), _retrieving(encode, samples)]
    wikitext = (folder / "wikitext2_raw_test.txt").read_text("utf-8")
    novel = (folder / "pride_and_prejudice.txt").read_text("utf-8")
    articles = json.loads((folder / "xquad_en.json").read_bytes())["data"]
    records = [json.loads(line) for line in (folder / "nq_open_oracle_500.jsonl").read_text("utf-8").splitlines()]
    return [
        _continuing("wikitext2", wikitext, encode, samples),
        _continuing("novel", novel, encode, samples),
        _answering("xquad", _of_xquad(articles), encode, samples),
        _answering("nq_open", _of_nq(records), encode, samples),
        _retrieving(encode, samples),
    ]


def _continuing(name: str, text: str, encode: Encode, samples: int) -> Task:
    """Predicting a text's next tokens, from places spread evenly over it."""
    tokens = encode(text[:2_000_000])
    span = PROMPT_TOKENS + CONTINUATION_TOKENS
    starts = np.linspace(0, len(tokens) - span, samples + 2).astype(int)[1:-1]
    pieces = [tokens[start : start + span] for start in starts]
    made = [Sample(tuple(piece[:PROMPT_TOKENS]), tuple(piece[PROMPT_TOKENS:])) for piece in pieces]
    return Task(name, "perplexity", made)


@dataclass(frozen=True)
class _Question:
    text: str
    passage: str
    answers: tuple[str, ...]


def _of_xquad(articles: Sequence[dict[str, Any]]) -> list[_Question]:
    found = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            asked = paragraph["qas"][0]
            found.append(_Question(asked["question"], paragraph["context"], tuple(a["text"] for a in asked["answers"])))
    return found


def _of_nq(records: Sequence[dict[str, Any]]) -> list[_Question]:
    return [_Question(r["question"] + "?", r["ctxs"][0]["text"], tuple(r["answers"])) for r in records]


def _answering(name: str, questions: Sequence[_Question], encode: Encode, samples: int) -> Task:
    """A question after several passages, one of which answers it; the others belong to other questions."""
    draw = random.Random(5)
    made = []
    for asked in draw.sample(list(questions), min(len(questions), samples)):
        others = draw.sample([other.passage for other in questions if other.passage != asked.passage], 12)
        tail = encode(f"\\n\\nQuestion: {asked.text}\\nThe answer, in a few words, is:")
        gold = encode("\\n\\n" + asked.passage)
        room = PROMPT_TOKENS - len(tail) - len(gold)
        if room < 0:
            continue
        after = encode("\\n\\n" + "\\n\\n".join(others[:4]))[: int(room * draw.random())]
        before = encode("\\n\\n".join(others[4:]))[: room - len(after)]
        prompt = [*before, *gold, *after, *tail]
        if len(prompt) == PROMPT_TOKENS:
            made.append(Sample(tuple(prompt), tuple(encode(" " + asked.answers[0])), asked.answers))
    return Task(name, "answer", made)


def _retrieving(encode: Encode, samples: int) -> Task:
    """A dictionary of words and numbers, and one word of it again: its number is to follow."""
    draw = random.Random(6)
    made = []
    for _ in range(samples):
        pairs = [(_word(draw), str(draw.randrange(10_000, 100_000))) for _ in range(200)]
        lines, count = encode("Code words and their numbers.\\n"), 0
        asked, _ = draw.choice(pairs[5:40])
        tail = encode(f"{asked}:")
        for count, (word, number) in enumerate(pairs):
            line = encode(f"{word}: {number}\\n")
            if len(lines) + len(line) > PROMPT_TOKENS - len(tail):
                break
            lines += line
        word, number = draw.choice(pairs[1 : count - 8])
        tail = encode(f"{word}:")
        filler = encode("\\n" * 64)
        lines = (lines[: PROMPT_TOKENS - len(tail)] + filler * PROMPT_TOKENS)[: PROMPT_TOKENS - len(tail)]
        made.append(Sample(tuple(lines + tail), tuple(encode(f" {number}"))))
    return Task("retrieval", "retrieval", made)
