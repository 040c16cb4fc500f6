"""Requests that came through the secure channel: what the application is told of one, and where its prompts are.

Only the sealed API puts a SealedRequest into a request's scope; no client can. Neither key nor prompt is seen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request

from cloister.errors import InvalidRequest
from cloister.gateway.schema import SealedCount
from cloister.levels import OPEN, Level
from cloister.messages.prompts import Prompt, PromptField, SealedPrompt

SCOPE = "cloister.sealed"

_Fields = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class SealedRequest:
    """The controller's number for a sealed request, and how many sealed prompts came with it."""

    number: int
    prompts: int

    def counts_prompts(self, raw: bytes, field: PromptField) -> bool:
        """Whether the body has an object where prompts would be: no prompt is one, but a SealedCount is."""
        try:
            given = msgspec.json.decode(raw, type=_Fields).get(field)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # read as a plain body, it is told what is wrong with it
        return given is not None and bytes(given).startswith(b"{")


def sealed_request_of(request: Request) -> SealedRequest | None:
    """What the sealed API says of the request; None for one that came in the clear."""
    sealed = request.scope.get(SCOPE)
    assert sealed is None or isinstance(sealed, SealedRequest)
    return sealed


def prompts_of(
    given: Sequence[Prompt] | SealedCount, field: PromptField, level: Level, sealed: SealedRequest | None
) -> Sequence[Prompt | SealedPrompt]:
    """The prompts, or the names of those that are sealed; InvalidRequest where they should be the other."""
    if not isinstance(given, SealedCount):
        if sealed is not None and level.confides:
            raise InvalidRequest(
                f"{field}: In a sealed request a prompt is sealed by itself, for its vault alone.",
                param=field,
                hint=f"Use a Cloister client, or ask for the level {OPEN!r}.",
            )
        return given
    if sealed is None or given.sealed != sealed.prompts:
        raise InvalidRequest(f"{field}: The number of sealed prompts is not the one that came.", param=field)
    if not level.confides:
        raise InvalidRequest(
            f"{field}: At the level {level.name!r} the prompt is read outside vaults and must not be sealed by itself.",
            param=field,
        )
    return tuple(SealedPrompt(sealed.number, index, field) for index in range(given.sealed))
