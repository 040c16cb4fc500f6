"""Tasks that depend on what is read of a prompt of `PROMPT_TOKENS`: going on, and finding a number in a list."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cloister.files import needed

PROMPT_TOKENS = 1024
CONTINUATION_TOKENS = 48

Kind = Literal["perplexity", "retrieval"]
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Sample:
    prompt: tuple[int, ...]
    continuation: tuple[int, ...]  # what follows the prompt in truth


@dataclass(frozen=True)
class Task:
    name: str
    kind: Kind
    samples: list[Sample]


def tasks_of(shared: Path | None, encode: Encode, samples: int) -> list[Task]:
    """Without the shared folder, finding alone."""
    if shared is None:
        return [_retrieving(encode, samples)]
    folder = shared / "data" / "longctx"
    texts = {"wikitext2": "wikitext2_raw_test.txt", "novel": "pride_and_prejudice.txt"}
    with needed(f"{folder} cannot be read", "--quality-data names the folder that has data/longctx."):
        read = {name: (folder / file).read_text("utf-8") for name, file in texts.items()}
    continuing = [_continuing(name, text, encode, samples) for name, text in read.items()]
    return [*continuing, _retrieving(encode, samples)]


def _continuing(name: str, text: str, encode: Encode, samples: int) -> Task:
    tokens = encode(text[:2_000_000])
    span = PROMPT_TOKENS + CONTINUATION_TOKENS
    starts = np.linspace(0, len(tokens) - span, samples + 2).astype(int)[1:-1]
    pieces = [tokens[start : start + span] for start in starts]
    made = [Sample(tuple(piece[:PROMPT_TOKENS]), tuple(piece[PROMPT_TOKENS:])) for piece in pieces]
    return Task(name, "perplexity", made)


def _retrieving(encode: Encode, samples: int) -> Task:
    draw = random.Random(6)
    made = []
    for _ in range(samples):
        pairs = [(_word(draw), str(draw.randrange(100, 1000))) for _ in range(PROMPT_TOKENS // 6)]
        lines = [encode(f"{word} = {number}\n") for word, number in pairs]
        kept = len(lines)
        while sum(map(len, lines[len(lines) - kept :])) >= PROMPT_TOKENS:
            kept -= 1
        word, number = draw.choice(pairs[len(lines) - kept + 1 : -8])
        tail = encode(f"{word} =")
        listed = [token for line in lines for token in line]
        prompt = listed[len(listed) + len(tail) - PROMPT_TOKENS :] + tail
        made.append(Sample(tuple(prompt), tuple(encode(f" {number}"))))
    return Task("retrieval", "retrieval", made)


def _word(draw: random.Random) -> str:
    return "".join(draw.choice("bdfgklmnprstvz") + draw.choice("aeiou") for _ in range(draw.choice((2, 3))))


def perplexity(logits: NDArray[np.float32], tokens: Sequence[int]) -> float:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    likelihood = shifted[np.arange(len(tokens)), list(tokens)] - np.log(np.exp(shifted).sum(axis=-1))
    return math.exp(-float(likelihood.mean()))
