"""What cannot be had where the prompt is in a vault, and who says so: we, at once, before anything is computed."""

from __future__ import annotations

from cloister.errors import InvalidRequest
from cloister.gateway.protection import OPEN, PARTITIONED
from cloister.gateway.schema import CompletionOptions, GenerationRequest


def refuse_what_needs_the_prompt(body: GenerationRequest, level: str) -> None:
    """InvalidRequest for a field that can be served only by whoever samples with the prompt at hand."""
    if level == OPEN:
        return
    if isinstance(body, CompletionOptions):
        if body.echo:
            raise _refusal(
                "echo", level, "The prompt is not given back from its vault; put it before the answer yourself."
            )
        if body.max_tokens == 0:
            raise _refusal("max_tokens", level, "To score a given text, ask for the level 'open'.")
    if level == PARTITIONED and body.repetition_penalty not in (None, 1):
        raise _refusal(
            "repetition_penalty", level, "Use presence_penalty or frequency_penalty, or the level 'isolated'."
        )


def _refusal(param: str, level: str, hint: str) -> InvalidRequest:
    return InvalidRequest(
        f"{param}: This needs the prompt where tokens are chosen, and at the level {level!r} it is not there.",
        param=param,
        hint=hint,
    )
