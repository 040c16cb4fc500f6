"""`<confidential>…</confidential>` in what people write: which characters must not leave their vault.

Tags are exact, come in pairs and do not nest. Anything else is refused rather than guessed at: a forgotten closing tag
must never make a secret public. Knows nothing of tokens, templates or who reads the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloister.errors import InvalidRequest

OPENING, CLOSING = "<confidential>", "</confidential>"

_TAG = re.compile(f"{re.escape(OPENING)}|{re.escape(CLOSING)}")
_HINT = f"Write {OPENING} before and {CLOSING} after each private part, within one text and without nesting."


@dataclass(frozen=True, slots=True)
class Marked:
    """A text without its tags. `spans` are the places of its pairs of tags, in order, as (start, end) characters.

    A pair with nothing inside is a span too: it says that the rest is not private.
    """

    text: str
    spans: tuple[tuple[int, int], ...]

    @property
    def tagged(self) -> bool:
        return bool(self.spans)

    @property
    def first_private(self) -> int | None:
        """Where the first private character stands; None if there is none."""
        return next((start for start, end in self.spans if start < end), None)

    def without_private(self, placeholder: str) -> str:
        """The text with the placeholder in place of every private part."""
        pieces = []
        at = 0
        for start, end in self.spans:
            if start < end:
                pieces += [self.text[at:start], placeholder]
                at = end
        return "".join(pieces) + self.text[at:]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


def parse_confidential(text: str, *, param: str) -> Marked:
    """Take the tags out of a text. `param` names the request's field in the errors."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    opened: int | None = None
    length = at = 0
    for found in _TAG.finditer(text):
        pieces.append(text[at : found.start()])
        length += found.start() - at
        at = found.end()
        if found[0] == OPENING:
            if opened is not None:
                raise _refusal(param, f"{OPENING} inside another.")
            opened = length
        else:
            if opened is None:
                raise _refusal(param, f"{CLOSING} without {OPENING} before it.")
            spans.append((opened, length))
            opened = None
    if opened is not None:
        raise _refusal(param, f"{OPENING} without {CLOSING} after it.")
    pieces.append(text[at:])
    plain = "".join(pieces)
    if spans and _TAG.search(plain):
        # Whoever strips again would read this text otherwise than we did.
        raise _refusal(param, "A tag is split by other tags.")
    return Marked(plain, tuple(spans))


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How far two texts, or two lists of tokens, are the same."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _refusal(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {what}", param=param, hint=_HINT)
