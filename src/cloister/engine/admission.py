"""What a request must be like to be queued at all: sizes, ids, and what a partition forbids.

Knows the model's limits as numbers; whether there is room now is the scheduler's affair.
"""

from __future__ import annotations

from cloister.engine.sequence import behind, layout_of
from cloister.errors import InvalidRequest, PromptTooLong
from cloister.messages.generation import Partition, SamplingParams, Submit


def check(request: Submit, *, vocabulary: int, max_context: int, relative: bool) -> None:
    """Raise InvalidRequest if this cannot be served."""
    params, length = request.params, len(request.prompt)
    if request.partition is not None:
        _check_partition(request, request.partition, vocabulary)
    elif not request.prompt:
        raise InvalidRequest("The prompt is empty.", param="prompt", hint="Send at least one token.")
    if request.prompt and (max(request.prompt) >= vocabulary or min(request.prompt) < 0):
        raise InvalidRequest(f"The prompt has token ids outside the vocabulary of {vocabulary}.", param="prompt")
    if request.public > length:
        raise InvalidRequest("The public span is longer than the prompt.", param="public")
    if request.answered and (request.partition is not None or request.public + request.answered >= length):
        raise InvalidRequest("A replayed answer needs a prompt before it.", param="answered")
    if params.logit_bias and max(params.logit_bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias has ids outside the vocabulary of {vocabulary}.", param="logit_bias")
    before = behind(layout_of(request, relative))
    before += request.answered
    if before + (params.max_tokens > 0) > max_context:
        raise PromptTooLong(
            f"The prompt has {before} tokens; prompt and output together may have {max_context}.",
            param="prompt",
            hint="Shorten the prompt.",
        )


def _check_partition(request: Submit, partition: Partition, vocabulary: int) -> None:
    if partition.first >= vocabulary:
        raise InvalidRequest(f"The first token is outside the vocabulary of {vocabulary}.", param="partition")
    if request.public not in (0, len(request.prompt)):
        raise InvalidRequest("With a partition the whole prompt given is public.", param="public")
    _refuse_what_needs_the_prompt(request.params)


def _refuse_what_needs_the_prompt(params: SamplingParams) -> None:
    needs = {
        "repetition_penalty": params.repetition_penalty != 1.0,
        "prompt_logprobs": params.prompt_logprobs is not None,
    }
    for name, wanted in needs.items():
        if wanted:
            raise InvalidRequest(
                f"{name} needs the whole prompt, which stays in its vault.", param=name, hint=f"Leave {name} out."
            )
