"""Beginnings without a user's words: chat template, known system prompts. The tagger may not object; rules do."""

from collections.abc import Iterable
from typing import Any, Protocol

from cloister.errors import InvalidRequest
from cloister.messages.types import MAX_OPENING

SYSTEM_PROMPTS = ("You are a helpful assistant.",)  # common to many users; known without a template too
_WORDS = "Qxvz"  # stands for a user's words


class Templated(Protocol):
    def render_chat(self, messages: list[dict[str, Any]], /) -> list[int]: ...
    def decode(self, tokens: list[int], /) -> str: ...


def prefixes_of(tokenizer: Templated) -> tuple[str, ...]:
    """What a model's template writes before the first user's words. Empty without a template."""
    user = {"role": "user", "content": _WORDS}
    found: set[str] = set()
    for system in (None, _WORDS, *SYSTEM_PROMPTS):
        chat = [user] if system is None else [{"role": "system", "content": system}, user]
        try:
            text = tokenizer.decode(tokenizer.render_chat(chat))
        except InvalidRequest:
            continue
        before, words, _ = text.partition(_WORDS)
        if words:
            found.add(before)
        if system in SYSTEM_PROMPTS and system in before:
            found.add(before[: before.index(system) + len(system)])
    return tuple(sorted(prefix for prefix in found if prefix and len(prefix) <= MAX_OPENING))


def known_until(text: str, prefixes: Iterable[str] = SYSTEM_PROMPTS) -> int:
    return max((len(prefix) for prefix in prefixes if text.startswith(prefix)), default=0)
