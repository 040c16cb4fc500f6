"""Prompts of a victim whose secret is one of a few that an attacker can list. Made from a seed; knows no server."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

BEFORE = (
    "You answer customers of a small bank. Be polite, be brief, and never promise what the bank cannot keep. "
    "The customer writes as follows, and you answer in one paragraph. "
)
AFTER = (
    " I would like to know how long a transfer takes, what it costs, and whether there is a limit for one day. Please "
    "explain it step by step, in words that a beginner understands, and do not forget to "
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


@dataclass(frozen=True)
class Secret:
    """What a victim says in several parts, each one of equally likely candidates; `true` says which."""

    parts: tuple[tuple[str, ...], ...]
    true: tuple[int, ...]


_KNOWN = (
    " I say so because you asked me for it, and because the letter of the bank says that nothing is done without it,"
    " so please write it down and tell me whether anything else is missing."
)
"""Follows every part. Longer than a page and known to the attacker, so that a right guess fills a page to its end."""


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
    """Personal data."""
    return draw.choice(_FORMS)(draw).strip()


_THINGS = ("garden", "river", "window", "letter", "kitchen", "bridge", "winter", "market", "engine", "forest", "music")
OPENING = "Answer every question as clearly as you can and never make anything up."
_INSTRUCTIONS = (
    "If you do not know the answer, say that you do not know it.",
    "Keep your answers short unless the user asks for more detail.",
    "Always explain the main idea first and the details after that.",
    "If the question is not clear, ask what was meant before you answer.",
    "When you show code, explain what each part of it does and why.",
    "Never write more than three paragraphs unless it is really needed.",
    "If there are several ways to do something, compare them in a short list.",
    "Say which of them you would choose and give a reason for it.",
    "Do not repeat the question in your answer.",
    "If a step can go wrong, say what usually goes wrong and how to fix it.",
    "Check your calculations twice before you write down the result.",
    "When numbers are involved, show how the result was found.",
    "Be polite at all times and do not use slang.",
    "Do not give medical or legal advice, and suggest asking an expert instead.",
    "If you are asked for a story, give it a beginning, a middle and an end.",
    "If you are asked for a summary, keep only what really matters.",
    "When you translate a text, keep its tone and its meaning.",
    "When you correct a text, list the changes at the end.",
    "Never promise what you cannot do.",
    "If a request is against the rules, decline it in one friendly sentence.",
    "Use examples from daily life to make difficult things easier.",
    "If the answer depends on something, say what it depends on.",
    "If the user asks for sources, say that they should be checked.",
    "Ask at most one question at a time.",
    "If you made a mistake, admit it and correct it at once.",
    "Avoid long sentences and divide them into shorter ones.",
    "Do not use capital letters to shout.",
    "When you compare two things, treat both of them fairly.",
    "Explain difficult words in brackets the first time you use them.",
    "If the task has several parts, answer them in the order in which they were asked.",
    "Try to be useful even if the question is very short.",
    "Leave out everything that does not help the reader.",
)
"""Without personal data. The shipped detector passes each of them; of natural ones it held back a tenth of all blocks,
and a held-back block holds back all that follow it."""


def sentences(draw: random.Random, tokens: int) -> str:
    """Instructions of about this many tokens, in random order."""
    count, drawn = max(1, tokens // TOKENS_PER_SENTENCE), list[str]()
    while len(drawn) < count:
        drawn += draw.sample(_INSTRUCTIONS, min(count - len(drawn), len(_INSTRUCTIONS)))
    return " ".join(drawn)


TOKENS_PER_SENTENCE = 14


def nonce(draw: random.Random) -> str:
    """A unique beginning."""
    return f"Write about {', '.join(draw.choices(_THINGS, k=8))}."


def flood_prompt(draw: random.Random) -> str:
    """A prompt of some 150 tokens that holds nothing private, and that other tenants hardly ever send."""
    return sentences(draw, 150)
