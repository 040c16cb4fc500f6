"""The terms of a generation, as they travel, read into the outline that programs are compiled from."""

from __future__ import annotations

import msgspec

from cloister.errors import InvalidRequest
from cloister.messages.mpc import Terms
from cloister.mpc.cache.plan import CachePlan
from cloister.mpc.programs import Outline


def outline_of(terms: Terms) -> Outline:
    """InvalidRequest where the terms make no sense."""
    try:
        cache = msgspec.json.decode(terms.cache, type=CachePlan)
        outline = Outline(terms.prompt_tokens, terms.new_tokens, cache, terms.functions, terms.answer)
        return msgspec.convert(msgspec.to_builtins(outline), Outline)  # constructors do not check limits
    except (msgspec.MsgspecError, ValueError):
        raise InvalidRequest("The terms of the generation make no sense.") from None
