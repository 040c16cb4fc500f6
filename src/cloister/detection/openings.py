"""Beginnings of prompts that are nobody's: what the served model's chat template writes by itself, and the system
prompt that everybody has.

Compared letter by letter with the text as it came, as a whole and at its very beginning. Sharing one tells nobody more
than the model's own files do. The tagger is not asked about it; rules are, an operator's too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from cloister.errors import InvalidRequest
from cloister.messages.types import MAX_OPENING

NOBODYS = ("You are a helpful assistant.",)
"""System prompts that everybody has; they are known without a template, too."""
_SOMEBODYS = "Qxvz"
"""Stands for anybody's words."""


class Templated(Protocol):
    """A tokenizer with a chat template (prompts.tokenizer)."""

    def render_chat(self, messages: list[dict[str, Any]], /) -> list[int]: ...
    def decode(self, tokens: list[int], /) -> str: ...


def openings_of(tokenizer: Templated) -> tuple[str, ...]:
    """What a model's template writes before anybody's words, with and without a system prompt that everybody has. None
    where there is no template, or where it refuses such a chat."""
    user = {"role": "user", "content": _SOMEBODYS}
    found: set[str] = set()
    for system in (None, _SOMEBODYS, *NOBODYS):
        chat = [user] if system is None else [{"role": "system", "content": system}, user]
        try:
            text = tokenizer.decode(tokenizer.render_chat(chat))
        except InvalidRequest:
            continue
        before, words, _ = text.partition(_SOMEBODYS)
        if words:
            found.add(before)
        if system in NOBODYS and system in before:
            found.add(before[: before.index(system) + len(system)])
    return tuple(sorted(opening for opening in found if opening and len(opening) <= MAX_OPENING))


def known_until(text: str, openings: Iterable[str] = NOBODYS) -> int:
    """How many characters of the text are the longest known beginning; 0 without one."""
    return max((len(opening) for opening in openings if text.startswith(opening)), default=0)
