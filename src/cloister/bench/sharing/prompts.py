"""Prompts of a victim whose secret is one of a few that an attacker can list. Made from a seed; knows no server."""

from __future__ import annotations

import random
from dataclasses import dataclass

BEFORE = (
    "You answer customers of a small bank. Be polite, be brief, and never promise what the bank cannot keep. "
    "The customer writes as follows, and you answer in one paragraph. "
)
AFTER = (
    " I would like to know how long a transfer takes, what it costs, and whether there is a limit for one day. Please "
    "explain it step by step, in words that somebody understands who has never done it before, and do not forget to "
    "say what happens on a holiday. If there are several ways to do it, compare them and say which one you would take "
    "and why. Thank you very much in advance for your answer, and have a good day."
)
"""The attacker knows what comes before the secret and after it: so long a text that one right guess saves much."""

_FIRST = ("Amara", "Bogdan", "Chiara", "Dimitri", "Esther", "Farouk", "Greta", "Hassan", "Ingrid", "Jorge")
_LAST = ("Abascal", "Brodsky", "Castellane", "Drummond", "Eriksen", "Ferreira", "Gutmann", "Hollander", "Ivanova")


@dataclass(frozen=True)
class Trial:
    """Equally likely prompts; the victim sends the one at `true`."""

    candidates: tuple[str, ...]
    true: int


def make_trial(draw: random.Random, candidates: int) -> Trial:
    """Secrets of one form, drawn from one distribution."""
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
