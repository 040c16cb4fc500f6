"""Draws texts to train on, made-up or shared, with other people: (text, [(start, end, class)]); class −1: ignore."""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cloister_bench.tagger import clean_text, corpora, names, values
from cloister_bench.tagger.corpora import Text
from cloister_bench.words import read_words

SENTENCES = read_words("sentences")  # {slots}; [[…]] around words that identify a person
SLOT = re.compile(r"\{(\w+)\}|\[\[|\]\]|\{\{|\}\}")
PRONOUNS = re.compile(
    r"\b(he|she|him|they|some(?:one|body)|the user|the customer|the author|the teacher)\b", re.IGNORECASE
)
ORGANISATIONS = re.compile(
    r"\b(univ|bank|ltd|inc|corp|company|group|school|college|hospital|institute|limited|co|foundation|department"
    r"|services|store|center|centre|agency|association|ngo|board|office|technolog|solutions)",
    re.IGNORECASE,
)


def filled(template: str, draw: random.Random, language: str | None) -> Text:
    text, spans, place, opened = "", [], 0, None
    template = template.replace("\\n", "\n")
    for found in SLOT.finditer(template):
        text += template[place : found.start()]
        place = found.end()
        if found.group() == "[[":
            opened = len(text)
        elif found.group() == "]]":
            spans.append((opened or 0, len(text), values.TRAIT))
        elif found.group(1):
            value = values.fill(found.group(1), draw, language)
            spans.append((len(text), len(text) + len(value), values.CLASS_OF[found.group(1)]))
            text += value
        else:
            text += found.group()[0]
    return text + template[place:], spans


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
    made = value
    if kind == values.PLACE and not re.search(r"\d", value):
        made = names.place(draw)
    elif kind == values.ORG or (kind in (values.NAME, values.UNIT) and ORGANISATIONS.search(value)):
        made = values.fill("org", draw, None)
    elif kind == values.NAME:
        made = names.given(draw) if draw.random() < 0.5 else names.family(draw)
    elif kind == values.UNIT and re.fullmatch(r"[^\W\d_]+([ '’.-]+[^\W\d_]+){0,2}", value):
        if " " in value:
            made = draw.choice((values.full(draw, None), values.fill("org", draw, None), names.place(draw)))
        else:
            made = draw.choice((names.given, names.family, names.place, lambda d: values.fill("org", d, None)))(draw)
    if value.islower():
        return made.lower()
    return made.upper() if value.isupper() and len(value) > 3 else made


def peopled(text: Text, draw: random.Random) -> Text:
    found = list(PRONOUNS.finditer(text[0]))
    if not found:
        return text
    spans = list(text[1])
    whole = text[0]
    for each in sorted(draw.sample(found, min(len(found), draw.randint(1, 3))), key=lambda one: -one.start()):
        value = values.full(draw, None) if draw.random() < 0.6 else names.given(draw)
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


WEIGHTS = {
    "english": 0.17,
    "local": 0.10,
    "clean": 0.06,
    "plain": 0.11,
    "several": 0.06,
    "prompt": 0.38,
    "passage": 0.10,
    "presidio": 0.06,
    "nannigalaxy": 0.02,
    "tweet": 0.15,
    "pupa": 0.30,
}
ASKS = 0.6  # share of requests among the clean sentences
PEOPLE = 0.7  # share of known names in clean prompts that training passes over; the others count as clean


class Material:
    def __init__(self, folder: Path) -> None:
        sets = corpora.labelled(folder)
        self.prompts, self.passages = corpora.unlabelled(folder), corpora.passages(folder)
        counted = Counter(word for text in (*self.prompts, *self.passages) for word in re.findall(r"\b[a-z]+\b", text))
        nobodys = {word.lower() for word in SENTENCES["CAPITALS_THAT_NAME_NOBODY"]}
        self.common = {word for word, count in counted.items() if count >= 2} | nobodys
        self.words = sorted(word for word in self.common if len(word) > 3 and word not in names.KNOWN)
        self.local = [(language, line) for language, lines in SENTENCES["LOCAL"].items() for line in lines.splitlines()]
        self.clean = SENTENCES["CLEAN"] + clean_text.WORDS["CLEAN_ELSEWHERE"]
        self._makers: dict[str, Callable[[random.Random], Text]] = {
            "english": lambda draw: filled(draw.choice(SENTENCES["EN"]), draw, None),
            "local": self._local,
            "clean": self._clean,
            "plain": self._plain,
            "several": self._several,
            "prompt": self._prompt,
            "passage": self._passage,
            "presidio": lambda draw: draw.choice(sets["presidio"]),
            "nannigalaxy": lambda draw: recast(draw.choice(sets["nannigalaxy"]), draw),
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
        return filled(line, draw, language if draw.random() < 0.85 else None)

    def _clean(self, draw: random.Random) -> Text:
        line = draw.choice(self.clean)
        if draw.random() < 0.4:
            line = re.sub(r"\b(the|a)\b", lambda _: draw.choice(SENTENCES["CAPITALS_THAT_NAME_NOBODY"]), line, count=1)
        return line, []

    def _plain(self, draw: random.Random) -> Text:
        make = clean_text.asked if draw.random() < ASKS else clean_text.sentence
        lines = [make(draw, self.words) for _ in range(draw.choice((1, 1, 2, 4)))]
        return draw.choice(("\n", " ", "\n\n")).join(lines), []

    def _several(self, draw: random.Random) -> Text:
        return joined([self.draw(draw) for _ in range(draw.randint(2, 5))], draw.choice((" ", "\n", "\n\n", " ")))

    def _prompt(self, draw: random.Random) -> Text:
        text, _ = piece((draw.choice(self.prompts), []), draw)
        known = [each for each in corpora.known(text) if draw.random() < PEOPLE]
        return peopled((text, known), draw) if draw.random() < 0.3 else (text, known)

    def _passage(self, draw: random.Random) -> Text:
        text, _ = piece((draw.choice(self.passages), []), draw)
        return titled((text, corpora.doubtful(text, self.common)), draw, draw.choice((0.0, 0.1, 0.3)))
