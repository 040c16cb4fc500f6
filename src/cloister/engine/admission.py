"""What a request must be like to be queued at all: sizes, ids, and what a partition forbids.

Knows the model's limits as numbers; whether there is room now is the scheduler's affair.
"""

from __future__ import annotations

from cloister.engine.sequence import behind, layout_of
from cloister.errors import InvalidRequest, PromptTooLong
from cloister.messages.generation import Partition, Submit


def check(request: Submit, *, vocabulary: int, max_context: int, relative: bool) -> None:
    """Raise InvalidRequest if this cannot be served."""
    params = request.params
    if request.partition is not None:
        _check_partition(request, request.partition, vocabulary)
    elif not request.prompt:
        raise InvalidRequest("The prompt is empty.", param="prompt", hint="Send at least one token.")
    if request.prompt and (max(request.prompt) >= vocabulary or min(request.prompt) < 0):
        raise InvalidRequest(f"The prompt has token ids outside the vocabulary of {vocabulary}.", param="prompt")
    _check_spans(request)
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


def _check_spans(request: Submit) -> None:
    """One public span, one private one, one answer, in this order: what the layout of one sequence can say."""
    labels = [span.label for span in request.spans]
    if labels != [label for label in ("public", "private", "answer") if label in labels]:
        raise InvalidRequest("Spans come as public, private, answer, each at most once.", param="spans")
    if request.spans and sum(span.tokens for span in request.spans) != len(request.prompt):
        raise InvalidRequest("The spans do not cover the prompt.", param="spans")
    if request.answered and (request.partition is not None or "private" not in labels):
        raise InvalidRequest("A replayed answer needs a prompt before it.", param="spans")


def _check_partition(request: Submit, partition: Partition, vocabulary: int) -> None:
    if len(request.partitions) > 1:
        raise InvalidRequest("A request has one sequence here.", param="partitions")
    if partition.first >= vocabulary:
        raise InvalidRequest(f"The first token is outside the vocabulary of {vocabulary}.", param="partitions")
    if request.public not in (0, len(request.prompt)):
        raise InvalidRequest("With a partition the whole prompt given is public.", param="spans")
    for name in {"repetition_penalty", "prompt_logprobs"} & request.params.wished:
        raise InvalidRequest(
            f"{name} needs the whole prompt, which stays in its vault.", param=name, hint=f"Leave {name} out."
        )
