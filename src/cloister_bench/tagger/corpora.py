"""Labelled texts of the shared data: (text, [(start, end, class)]); class −1: ignore. Licences are in SOURCES.md."""

import re
from functools import cache
from pathlib import Path

from cloister_bench.detection.data import Sample, read_sets
from cloister_bench.tagger import values
from cloister_bench.tagger.values import KNOWN, NUMBER, Text
from cloister_bench.words import read_words

Span = tuple[int, int, int]
WORDS = read_words("corpora")
KIND_OF: dict[str, int] = {label: getattr(values, kind) for kind, labels in WORDS["KINDS"].items() for label in labels}
TRAINED_ON = (0, 1)  # quarters of each set
PROMPTS = ("arena_hard", "mt_bench", "awesome", "self_instruct", "injecguard", "prompt_extraction")
SHINGLE = 8  # a text that shares this many words in a row with a kept one is not trained on


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[place : place + SHINGLE]) for place in range(len(words) - SHINGLE + 1)}


@cache
def _kept(folder: Path) -> tuple[list[Sample], set[tuple[str, ...]]]:
    """What may be trained on, and the shingles of what may not."""
    samples, shingles = [], set()
    for sample in read_sets(folder):
        if sample.quarter in TRAINED_ON:
            samples.append(sample)
        else:
            shingles |= _shingles(sample.text)
    return [one for one in samples if not _shingles(one.text) & shingles], shingles


def labelled(folder: Path) -> dict[str, list[Text]]:
    sets: dict[str, list[Text]] = {}
    for sample in _kept(folder)[0]:
        if sample.dataset not in PROMPTS:
            spans = [
                (start, end, -1 if label == "?" else KIND_OF.get(label, NUMBER)) for start, end, label in sample.spans
            ]
            sets.setdefault(sample.dataset, []).append((sample.text, spans))
    return sets


def unlabelled(folder: Path) -> list[str]:
    return [sample.text for sample in _kept(folder)[0] if sample.dataset in PROMPTS]


def passages(folder: Path) -> list[str]:
    """Paragraphs of Wikipedia (WikiText-2): for their common words, not for their names."""
    text = (folder / "data/longctx/wikitext2_raw_test.txt").read_text(encoding="utf-8")
    text = re.sub(r" @(.)@ ", r"\1", text)
    text = re.sub(r" ([.,;:!?)])", r"\1", text).replace("( ", "(")
    seen = _kept(folder)[1]
    lines = {line.strip() for line in text.splitlines()}
    return [line for line in sorted(lines) if len(line) > 200 and not _shingles(line) & seen]


def doubtful(text: str, common: set[str]) -> list[Span]:
    """Of an unlabelled text: what might be an entity, to be ignored in training."""
    spans = []
    for word in re.finditer(r"[^\W\d_]+|\d[\d.,:/-]{3,}\d|\S+@\S+", text):
        found, low = word.group(), word.group().lower()
        if found[0].isdigit() or "@" in found or (found[0].isupper() and (low not in common or low in KNOWN)):
            spans.append((word.start(), word.end(), -1))
    return spans


def known(text: str) -> list[Span]:
    """Of a clean text: names that a person might have, to be ignored in training."""
    words = re.finditer(r"[A-Z][^\W\d_]+", text)
    return [(word.start(), word.end(), -1) for word in words if word.group().lower() in KNOWN]
