"""Labelled texts of the shared data: (text, [(start, end, class)]); class −1: ignore. Licences are in SOURCES.md."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cloister_bench.detection.data import Sample, quarter_of, read_sets, units_in
from cloister_bench.tagger import names, values
from cloister_bench.tagger.values import NAME, NUMBER, PLACE, UNIT
from cloister_bench.words import read_words

Span = tuple[int, int, int]
Text = tuple[str, list[Span]]

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


def responses(folder: Path) -> list[Text]:
    """What a model answered to the prompts of PUPA that may be trained on; what is private in those is here too."""
    kept, texts = {sample.text for sample in _kept(folder)[0]}, []
    with (folder / "data/pii/pupa_tnb.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            text = row["target_response"]
            if row["user_query"] in kept and not _shingles(text) & _kept(folder)[1]:
                texts.append((text, [(start, end, UNIT) for start, end, _ in units_in(text, row["pii_units"])]))
    return texts


def unlabelled(folder: Path) -> list[str]:
    return [sample.text for sample in _kept(folder)[0] if sample.dataset in PROMPTS]


def passages(folder: Path) -> list[str]:
    """Paragraphs of Wikipedia (WikiText-2, XQuAD, Natural Questions): for their common words, not for their names."""
    text = (folder / "data/longctx/wikitext2_raw_test.txt").read_text(encoding="utf-8")
    text = re.sub(r" @(.)@ ", r"\1", text)
    text = re.sub(r" ([.,;:!?)])", r"\1", text).replace("( ", "(")
    seen = _kept(folder)[1]
    lines = [line.strip() for line in text.splitlines()]
    articles = json.loads((folder / "data/longctx/xquad_en.json").read_text(encoding="utf-8"))["data"]
    lines += [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    for line in (folder / "data/longctx/nq_open_oracle_500.jsonl").read_text(encoding="utf-8").splitlines():
        lines += [context["text"] for context in json.loads(line)["ctxs"]]
    return [line for line in sorted(set(lines)) if len(line) > 200 and not _shingles(line) & seen]


def entities(lines: list[str], common: set[str]) -> list[str]:
    found: Counter[str] = Counter()
    for line in lines:
        for each in re.finditer(r"(?<=[a-z,] )[A-Z][\w'&-]+(?: (?:of |the |and |de )?[A-Z][\w'&-]+){0,3}", line):
            words = each.group().split()
            if any(word.lower() not in common for word in words) and not any(word.isdigit() for word in words):
                found[each.group()] += 1
    return sorted(found)


def presidio_templates(folder: Path) -> list[str]:
    rows = json.loads((folder / "data/pii/presidio_synth_dataset_v2.json").read_text(encoding="utf-8"))
    mine = {row["masked"] for row in rows if quarter_of(row["template_id"]) in TRAINED_ON}
    held = [row["masked"] for row in rows if quarter_of(row["template_id"]) not in TRAINED_ON]
    others = {each for masked in held for each in _shingles(masked)}
    return sorted(each for each in mine if not _shingles(each) & others)


def novel(folder: Path) -> Iterator[Text]:
    """Sentences of a novel in the public domain, its people and places labelled by its own cast."""
    text = (folder / "data/longctx/pride_and_prejudice.txt").read_text(encoding="utf-8-sig")
    body = text[text.index("truth universally acknowledged") - 20 : text.rindex("End of")]
    for paragraph in body.split("\n\n"):
        line = " ".join(paragraph.split()).replace("_", "")
        if not len(line) > 30 or line.startswith("Chapter"):
            continue
        spans = []
        for word in re.finditer(r"[A-Z][a-z]+", line):
            if word.group() in WORDS["CHARACTERS"]:
                spans.append((word.start(), word.end(), NAME))
            elif word.group() in WORDS["PLACES"]:
                spans.append((word.start(), word.end(), PLACE))
        yield line, spans


def doubtful(text: str, common: set[str]) -> list[Span]:
    """Of an unlabelled text: what might be an entity, to be ignored in training."""
    spans = []
    for word in re.finditer(r"[^\W\d_]+|\d[\d.,:/-]{3,}\d|\S+@\S+", text):
        found, low = word.group(), word.group().lower()
        if found[0].isdigit() or "@" in found or (found[0].isupper() and (low not in common or low in names.KNOWN)):
            spans.append((word.start(), word.end(), -1))
    return spans


def known(text: str) -> list[Span]:
    """Of a clean text: names that a person might have, to be ignored in training."""
    words = re.finditer(r"[A-Z][^\W\d_]+", text)
    return [(word.start(), word.end(), -1) for word in words if word.group().lower() in names.KNOWN]
