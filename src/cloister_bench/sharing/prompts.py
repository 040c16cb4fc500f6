"""Prompts of a victim whose secret is one of a few that an attacker can list. Made from a seed; knows no server."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from cloister_bench.words import read_words

_LISTS = read_words("prompts")
BEFORE: str = _LISTS["BEFORE"]
AFTER: str = _LISTS["AFTER"]  # so long that one right guess saves much

_FIRST: list[str] = _LISTS["FIRST"]
_LAST: list[str] = _LISTS["LAST"]


@dataclass(frozen=True)
class Trial:
    """Equally likely prompts; the victim sends the one at `true`."""

    candidates: tuple[str, ...]
    true: int


def make_trial(draw: random.Random, candidates: int) -> Trial:
    secrets: set[str] = set()
    while len(secrets) < candidates:
        secrets.add(_secret(draw))
    ordered = sorted(secrets)
    draw.shuffle(ordered)
    return Trial(tuple(BEFORE + secret + AFTER for secret in ordered), draw.randrange(candidates))


def _secret(draw: random.Random) -> str:
    name = f"{draw.choice(_FIRST)} {draw.choice(_LAST)}"
    number = f"+49 30 {draw.randrange(10**7, 10**8)}"
    return f"My name is {name}, my number is {number}, and my card ends in {draw.randrange(10**4):04d}."


@dataclass(frozen=True)
class Secret:
    """What a victim says in several parts, each one of equally likely candidates; `true` says which."""

    parts: tuple[tuple[str, ...], ...]
    true: tuple[int, ...]


_KNOWN: str = _LISTS["KNOWN"]  # longer than a page: a right guess fills one


def make_secret(draw: random.Random, parts: int, candidates: int) -> Secret:
    def part(number: int) -> tuple[str, ...]:
        drawn: set[str] = set()
        while len(drawn) < candidates:
            drawn.add(_FORMS[number % len(_FORMS)](draw) + _KNOWN)
        ordered = sorted(drawn)
        draw.shuffle(ordered)
        return tuple(ordered)

    return Secret(tuple(map(part, range(parts))), tuple(draw.randrange(candidates) for _ in range(parts)))


_FORMS: tuple[Callable[[random.Random], str], ...] = (
    lambda draw: f" My name is {draw.choice(_FIRST)} {draw.choice(_LAST)}, customer {draw.randrange(10**5, 10**6)}.",
    lambda draw: f" My number is +49 30 {draw.randrange(10**7, 10**8)}.",
    lambda draw: f" My card is {draw.randrange(10**15, 10**16)}.",
    lambda draw: f" I was born on {draw.randrange(1, 29)} May {draw.randrange(1930, 2005)}.",
)


def private_sentence(draw: random.Random) -> str:
    return draw.choice(_FORMS)(draw).strip()


_THINGS: list[str] = _LISTS["THINGS"]
OPENING = "Answer every question as clearly as you can and never make anything up."
_INSTRUCTIONS: list[str] = _LISTS["INSTRUCTIONS"]  # the detector passes each


def sentences(draw: random.Random, tokens: int) -> str:
    count, drawn = max(1, tokens // TOKENS_PER_SENTENCE), list[str]()
    while len(drawn) < count:
        drawn += draw.sample(_INSTRUCTIONS, min(count - len(drawn), len(_INSTRUCTIONS)))
    return " ".join(drawn)


TOKENS_PER_SENTENCE = 14


def nonce(draw: random.Random) -> str:
    return f"Write about {', '.join(draw.choices(_THINGS, k=8))}."


def flood_prompt(draw: random.Random) -> str:
    return sentences(draw, 150)
