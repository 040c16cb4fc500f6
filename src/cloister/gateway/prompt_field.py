"""The `prompt` of a plain completion: a string, a list of strings, token ids, or a list of lists of token ids.

Checked by hand: a union of the four would report every element of a long wrong list four times.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, WithJsonSchema

from cloister.gateway.limits import MAX_CHOICES, MAX_PROMPT_TOKENS

OnePrompt: TypeAlias = str | tuple[int, ...]

_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "minItems": 1}
_STRINGS = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MAX_CHOICES}
_LISTS = {"type": "array", "items": _TOKENS, "minItems": 1, "maxItems": MAX_CHOICES}
_SCHEMA = {"anyOf": [{"type": "string", "minLength": 1}, _STRINGS, _TOKENS, _LISTS]}


def _prompts(value: Any) -> tuple[OnePrompt, ...]:
    """The prompts, one or more, none of them empty."""
    if isinstance(value, list) and value and type(value[0]) is not int:
        if len(value) > MAX_CHOICES:
            raise ValueError(f"At most {MAX_CHOICES} prompts are supported in one request")
        if not all(type(each) is type(value[0]) for each in value):
            raise ValueError("Prompts must be all strings or all lists of token ids")
        return tuple(_one(each) for each in value)
    return (_one(value),)


def _one(value: Any) -> OnePrompt:
    if not isinstance(value, str | list):
        raise ValueError("A prompt must be a string or a list of token ids")
    if not value:
        raise ValueError("A prompt must not be empty")
    if isinstance(value, str):
        return value
    if len(value) > MAX_PROMPT_TOKENS:
        raise ValueError(f"A prompt may have at most {MAX_PROMPT_TOKENS} tokens")
    if not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise ValueError("Token ids must be integers from 0 to 2147483647")
    return tuple(value)


Prompt = Annotated[Any, AfterValidator(_prompts), WithJsonSchema(_SCHEMA)]
