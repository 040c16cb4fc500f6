"""Tasks that depend on what is read of a prompt of `PROMPT_TOKENS`. On generated texts only retrieval can succeed."""

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
        head = encode("<|im_start|>user\nAnswer the question from the passages, in a few words.\n\n")
        tail = encode(f"\n\nQuestion: {asked.text}<|im_end|>\n<|im_start|>assistant\n")
        gold = encode("\n\n" + asked.passage)
        room = PROMPT_TOKENS - len(head) - len(tail) - len(gold)
        if room < 0:
            continue
        after = encode("\n\n" + "\n\n".join(others[:4]))[: int(room * draw.random())]
        before = encode("\n\n".join(others[4:]))[: room - len(after)]
        prompt = [*head, *before, *gold, *after, *tail]
        if len(prompt) == PROMPT_TOKENS:
            made.append(Sample(tuple(prompt), tuple(encode(" " + asked.answers[0])), asked.answers))
    return Task(name, "answer", made)


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


def _generated_text() -> str:
    """Sentences of few words in many orders: nothing to be learnt from, but a prompt like any other."""
    draw = random.Random(7)
    nouns = ["river", "garden", "letter", "engine", "mountain", "teacher", "window", "market", "captain", "song"]
    verbs = ["finds", "keeps", "crosses", "remembers", "paints", "follows", "builds", "leaves"]
    sentences = [f"The {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)}." for _ in range(4000)]
    return " ".join(sentences)


def perplexity(logits: NDArray[np.float32], tokens: Sequence[int]) -> float:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    likelihood = shifted[np.arange(len(tokens)), list(tokens)] - np.log(np.exp(shifted).sum(axis=-1))
    return math.exp(-float(likelihood.mean()))


def answer_f1(given: str, answers: Sequence[str]) -> float:
    """SQuAD's: words in common, after dropping case, punctuation and articles; the best of the right answers."""
    return max(_overlap(_words(given), _words(answer)) for answer in answers)


def _words(text: str) -> list[str]:
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _overlap(given: list[str], right: list[str]) -> float:
    common = sum((Counter(given) & Counter(right)).values())
    return 2 * common / (len(given) + len(right)) if common else 0.0
