"""Draws texts to train on, made-up or of the shared data, with other people: (text, [(start, end, class)]); class −1:
ignore. Licences are in SOURCES.md."""

import random
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

from cloister_bench.detection.data import Sample, read_sets
from cloister_bench.tagger import values
from cloister_bench.tagger.values import Text
from cloister_bench.words import read_words

SENTENCES, ASKS, CLEAN = (read_words(name) for name in ("sentences", "asks", "clean_text"))
CLEAN_SLOTS: dict[str, list[str]] = {**CLEAN["SLOTS"], "verb": ASKS["_TO"]}  # none is filled with personal data
KIND_OF: dict[str, int] = {
    label: getattr(values, kind) for kind, labels in read_words("corpora")["KINDS"].items() for label in labels
}
TRAINED_ON = (0, 1)  # quarters of each set
PROMPTS = ("arena_hard", "mt_bench", "awesome", "self_instruct", "injecguard", "prompt_extraction")
SHINGLE = 8  # a text that shares this many words in a row with a kept one is not trained on
PRONOUNS = re.compile(
    r"\b(he|she|him|they|some(?:one|body)|the user|the customer|the author|the teacher)\b", re.IGNORECASE
)
ORGANISATIONS = re.compile(
    r"\b(univ|bank|ltd|inc|corp|company|group|school|college|hospital|institute|limited|co|foundation|department"
    r"|services|store|center|centre|agency|association|ngo|board|office|technolog|solutions)",
    re.IGNORECASE,
)


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
                (start, end, -1 if label == "?" else KIND_OF.get(label, values.NUMBER))
                for start, end, label in sample.spans
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


def doubtful(text: str, common: set[str]) -> list[tuple[int, int, int]]:
    """Of an unlabelled text: what might be an entity, to be ignored in training."""
    spans = []
    for word in re.finditer(r"[^\W\d_]+|\d[\d.,:/-]{3,}\d|\S+@\S+", text):
        found, low = word.group(), word.group().lower()
        if found[0].isdigit() or "@" in found or (found[0].isupper() and (low not in common or low in values.KNOWN)):
            spans.append((word.start(), word.end(), -1))
    return spans


def known(text: str) -> list[tuple[int, int, int]]:
    """Of a clean text: names that a person might have, to be ignored in training."""
    words = re.finditer(r"[A-Z][^\W\d_]+", text)
    return [(word.start(), word.end(), -1) for word in words if word.group().lower() in values.KNOWN]


def made(template: str, draw: random.Random, language: str | None) -> Text:
    return values.filled(template, lambda slot: values.fill(slot, draw, language))


def joined(texts: list[Text], between: str) -> Text:
    whole, spans = "", []
    for text, own in texts:
        whole += between if whole else ""
        spans += [(start + len(whole), end + len(whole), kind) for start, end, kind in own]
        whole += text
    return whole, spans


def recast(text: Text, draw: random.Random, often: float = 0.8) -> Text:
    whole, spans, place = "", [], 0
    for start, end, kind in sorted(text[1]):
        if start < place:
            continue
        whole += text[0][place:start]
        value = text[0][start:end]
        if draw.random() < often:
            value = another(value, kind, draw)
        spans.append((len(whole), len(whole) + len(value), kind))
        whole += value
        place = end
    return whole + text[0][place:], spans


def another(value: str, kind: int, draw: random.Random) -> str:
    """Of the same kind: units are names, organisations or places where they are words."""
    slots: tuple[str, ...] = ()
    if kind == values.ORG or (kind in (values.NAME, values.UNIT) and ORGANISATIONS.search(value)):
        slots = ("org",)
    elif kind == values.PLACE and not re.search(r"\d", value):
        slots = ("place",)
    elif kind == values.NAME:
        slots = ("first", "last")
    elif kind == values.UNIT and re.fullmatch(r"[^\W\d_]+([ '’.-]+[^\W\d_]+){0,2}", value):
        slots = ("name", "org", "place") if " " in value else ("first", "last", "place", "org")
    new = values.fill(draw.choice(slots), draw) if slots else value
    if value.islower():
        return new.lower()
    return new.upper() if value.isupper() and len(value) > 3 else new


def peopled(text: Text, draw: random.Random) -> Text:
    found = list(PRONOUNS.finditer(text[0]))
    if not found:
        return text
    spans = list(text[1])
    whole = text[0]
    for each in sorted(draw.sample(found, min(len(found), draw.randint(1, 3))), key=lambda one: -one.start()):
        value = values.fill("name" if draw.random() < 0.6 else "first", draw)
        shift = len(value) - len(each.group())
        spans = [(s + shift, e + shift, k) if s >= each.end() else (s, e, k) for s, e, k in spans]
        spans.append((each.start(), each.start() + len(value), values.NAME))
        whole = whole[: each.start()] + value + whole[each.end() :]
    return whole, spans


def piece(text: Text, draw: random.Random) -> Text:
    whole, spans = text
    if len(whole) < 500:
        return text
    start = whole.find(" ", draw.randrange(0, len(whole) - 400)) + 1
    end = start + draw.randint(200, 800)
    kept = [(max(s, start) - start, min(e, end) - start, k) for s, e, k in spans if e > start and s < end]
    return whole[start:end], kept


def titled(text: Text, draw: random.Random, share: float) -> Text:
    letters = list(text[0])
    for word in re.finditer(r"(?<![^\W_])[a-z](?=[a-z])", text[0]):
        if draw.random() < share:
            letters[word.start()] = letters[word.start()].upper()
    return "".join(letters), text[1]


def _some(draw: random.Random, common: list[str], least: int, most: int) -> list[str]:
    return [draw.choice(common) for _ in range(draw.randint(least, most))]


_MADE_CLEAN: dict[str, Callable[[random.Random, list[str]], str]] = {
    "title": lambda draw, common: " ".join(word.capitalize() for word in _some(draw, common, 2, 7)),
    "code": lambda draw, common: draw.choice("__-.").join(_some(draw, common, 1, 3)),
    "Camel": lambda draw, common: "".join(word.capitalize() for word in _some(draw, common, 1, 3)),
    "common": lambda draw, common: draw.choice(common),
    "Common": lambda draw, common: draw.choice(common).capitalize(),
    "CAPS": lambda draw, common: draw.choice(common).upper(),
    "count": lambda draw, _: str(draw.randint(2, 30)),
    "year": lambda draw, _: str(draw.randint(1700, 2035)),
    "number": lambda draw, _: draw.choice((f"{draw.randint(1, 999)}", f"{draw.randint(1, 9999) / 100}")),
}


def _sentence(draw: random.Random, common: list[str]) -> str:
    """Clean text that looks like names: products, works, the long dead, headings, code, quantities."""
    return _filled(draw.choice(CLEAN["SENTENCES"]), draw, common)


def _asked(draw: random.Random, common: list[str]) -> str:
    """A request that is given whole, or one that is put together."""
    if draw.random() < 0.65:
        return _filled(draw.choice(ASKS["LINES"]), draw, common)
    adjective = draw.choice(ASKS["_ADJECTIVES"]) + " " if draw.random() < 0.6 else ""
    noun = adjective + draw.choice(ASKS["_GENRES"])
    noun = f"{{count}} {noun}s" if draw.random() < 0.12 else f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
    parts = draw.choice(ASKS["_VERBS"]).strip(), noun, draw.choice(ASKS["_ABOUT"]), draw.choice(ASKS["_BOUNDS"])
    return _filled(" ".join(parts).strip() + draw.choice((".", ".", "", "?", "!", ":")), draw, common)


def _filled(template: str, draw: random.Random, common: list[str]) -> str:
    value = lambda slot: draw.choice(CLEAN_SLOTS[slot]) if slot in CLEAN_SLOTS else _MADE_CLEAN[slot](draw, common)  # noqa: E731
    return values.filled(template, value)[0]


WEIGHTS = {
    "english": 0.17,
    "local": 0.10,
    "clean": 0.06,
    "plain": 0.11,
    "several": 0.06,
    "prompt": 0.38,
    "passage": 0.10,
    "presidio": 0.06,
    "tweet": 0.15,
    "pupa": 0.30,
}
ASKED = 0.6  # share of requests among the clean sentences
PEOPLE = 0.7  # share of known names in clean prompts that training passes over; the others count as clean


class Material:
    def __init__(self, folder: Path) -> None:
        sets = labelled(folder)
        self.prompts, self.passages = unlabelled(folder), passages(folder)
        counted = Counter(word for text in (*self.prompts, *self.passages) for word in re.findall(r"\b[a-z]+\b", text))
        nobodys = {word.lower() for word in SENTENCES["CAPITALS_THAT_NAME_NOBODY"]}
        self.common = {word for word, count in counted.items() if count >= 2} | nobodys
        self.words = sorted(word for word in self.common if len(word) > 3 and word not in values.KNOWN)
        self.local = [(language, line) for language, lines in SENTENCES["LOCAL"].items() for line in lines.splitlines()]
        self.clean = SENTENCES["CLEAN"] + CLEAN["CLEAN_ELSEWHERE"]
        self._makers: dict[str, Callable[[random.Random], Text]] = {
            "english": lambda draw: made(draw.choice(SENTENCES["EN"]), draw, None),
            "local": self._local,
            "clean": self._clean,
            "plain": self._plain,
            "several": self._several,
            "prompt": self._prompt,
            "passage": self._passage,
            "presidio": lambda draw: draw.choice(sets["presidio"]),
            "tweet": lambda draw: recast(draw.choice(sets["wnut17"]), draw, 0.5),
            "pupa": lambda draw: recast(piece(draw.choice(sets["pupa"]), draw), draw, 0.6),
        }

    def draw(self, draw: random.Random) -> Text:
        kind = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        text = self._makers[kind](draw)
        chance = draw.random()
        if chance < 0.10 and len(text[0].lower()) == len(text[0]):
            return text[0].lower(), text[1]
        if chance < 0.13 and len(text[0].upper()) == len(text[0]):
            return text[0].upper(), text[1]
        if chance < 0.18:
            return titled(text, draw, draw.choice((0.1, 0.3, 1.0)))
        return text

    def _local(self, draw: random.Random) -> Text:
        language, line = draw.choice(self.local)
        return made(line, draw, language if draw.random() < 0.85 else None)

    def _clean(self, draw: random.Random) -> Text:
        line = draw.choice(self.clean)
        if draw.random() < 0.4:
            line = re.sub(r"\b(the|a)\b", lambda _: draw.choice(SENTENCES["CAPITALS_THAT_NAME_NOBODY"]), line, count=1)
        return line, []

    def _plain(self, draw: random.Random) -> Text:
        make = _asked if draw.random() < ASKED else _sentence
        lines = [make(draw, self.words) for _ in range(draw.choice((1, 1, 2, 4)))]
        return draw.choice(("\n", " ", "\n\n")).join(lines), []

    def _several(self, draw: random.Random) -> Text:
        return joined([self.draw(draw) for _ in range(draw.randint(2, 5))], draw.choice((" ", "\n", "\n\n", " ")))

    def _prompt(self, draw: random.Random) -> Text:
        text, _ = piece((draw.choice(self.prompts), []), draw)
        names = [each for each in known(text) if draw.random() < PEOPLE]
        return peopled((text, names), draw) if draw.random() < 0.3 else (text, names)

    def _passage(self, draw: random.Random) -> Text:
        text, _ = piece((draw.choice(self.passages), []), draw)
        return titled((text, doubtful(text, self.common)), draw, draw.choice((0.0, 0.1, 0.3)))
