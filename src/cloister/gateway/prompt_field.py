"""The `prompt` of a plain completion: a string, a list of strings, token ids, or a list of lists of token ids.

Checked by hand: a union of the four would report every element of a long wrong list four times.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from cloister.gateway.limits import MAX_CHOICES
from cloister.prompts.json_prompt import OnePrompt, one_prompt

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
        return tuple(one_prompt(each) for each in value)
    return (one_prompt(value),)


Prompt = Annotated[Any, AfterValidator(_prompts), WithJsonSchema(_SCHEMA)]
