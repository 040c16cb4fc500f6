"""Each variant's answers by a hash of the real conversation, so that it goes on with its own: with the real one's in
all of them, the server would know which is real. The last few hundred are kept, fewer of long ones."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence

MAX_REMEMBERED, MAX_CHARACTERS = 256, 1 << 22


def turn_of(said: Iterable[tuple[str | None, str]]) -> str:
    """A name for a conversation so far: roles and real texts, white space at their ends aside."""
    return hashlib.sha256(json.dumps([(role, text.strip()) for role, text in said]).encode()).hexdigest()


class Answers:
    """By conversation and real answer, what every variant was answered; the real one first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._characters = 0

    def remember(self, turn: str, texts: Sequence[str]) -> None:
        self._forget(_after(turn, texts[0]))
        self._known[_after(turn, texts[0])] = tuple(texts)
        self._characters += sum(map(len, texts))
        while len(self._known) > MAX_REMEMBERED or self._characters > MAX_CHARACTERS:
            self._forget(next(iter(self._known)))

    def find(self, turn: str, answer: str) -> tuple[str, ...] | None:
        return self._known.get(_after(turn, answer))

    def _forget(self, name: str) -> None:
        self._characters -= sum(map(len, self._known.pop(name, ())))


def _after(turn: str, answer: str) -> str:
    return hashlib.sha256(f"{turn}\0{answer.strip()}".encode("utf-8", "replace")).hexdigest()
