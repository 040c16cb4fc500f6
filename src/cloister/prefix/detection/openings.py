"""Beginnings of prompts that are nobody's: what a served model's chat template writes by itself, and the system prompt
that everybody has.

Compared letter by letter with the text as it came, as a whole and at its very beginning. Sharing one tells nobody more
than this file does. The tagger is not asked about it; rules are, an operator's too.
"""

from __future__ import annotations

_SYSTEM_PROMPTS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are a helpful assistant.",
)
_ROLES = ("system\n", "user\n")
"""As ChatML has them; its special tokens are no text."""

_OPENINGS = (
    *(f"system\n{prompt}\nuser\n" for prompt in _SYSTEM_PROMPTS),
    *(f"system\n{prompt}" for prompt in _SYSTEM_PROMPTS),
    *_SYSTEM_PROMPTS,
    *_ROLES,
)


def known_until(text: str) -> int:
    """How many characters of the text are the longest known beginning; 0 without one."""
    return max((len(opening) for opening in _OPENINGS if text.startswith(opening)), default=0)
