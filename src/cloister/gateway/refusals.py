"""What cannot be had where the prompt is in a vault, and who says so: we, at once, before anything is computed."""

from __future__ import annotations

from cloister.errors import InvalidRequest
from cloister.gateway.protection import MPC, OPEN, PARTITIONED
from cloister.gateway.schema import ChatOptions, CompletionOptions, GenerationRequest


def refuse_what_needs_the_prompt(body: GenerationRequest, level: str) -> None:
    """InvalidRequest for a field that can be served only by whoever samples with the prompt at hand."""
    if level != MPC and body.mpc_reveal is not None:
        raise InvalidRequest("mpc_reveal: This is for the level 'mpc' alone.", param="mpc_reveal")
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
    if level == MPC and body.mpc_reveal != "logits":
        _refuse_what_needs_logits(body)


def _refuse_what_needs_logits(body: GenerationRequest) -> None:
    """On shares a token is the likeliest, or drawn by its probability. All else needs the logits."""
    wishes = {
        "top_p": body.top_p not in (None, 1),
        "top_k": body.top_k not in (None, 0, -1),
        "min_p": body.min_p not in (None, 0),
        "repetition_penalty": body.repetition_penalty not in (None, 1),
        "logprobs": isinstance(body, ChatOptions | CompletionOptions) and body.logprobs not in (None, False),
    }
    for param, wished in wishes.items():
        if wished:
            raise InvalidRequest(
                f"{param}: At the level 'mpc' tokens are chosen on shares, and this needs the logits.",
                param=param,
                hint='Leave it out, or add "mpc_reveal": "logits", which opens them to the process that holds the '
                "prompt, not to the parties.",
            )


def _refusal(param: str, level: str, hint: str) -> InvalidRequest:
    return InvalidRequest(
        f"{param}: This needs the prompt where tokens are chosen, and at the level {level!r} it is not there.",
        param=param,
        hint=hint,
    )
