"""What the engine refuses, before a request waits."""

from cloister.engine.base import EngineRequest
from cloister.errors import InvalidRequest, PromptTooLong
from cloister_vllm.arguments import unserved
from cloister_vllm.core import Core

LEAVE_IT_OUT = "Leave it out."


def check(request: EngineRequest, core: Core) -> None:
    """Raise why it cannot be served."""
    params, vocabulary = request.params, core.vocabulary
    tokens = _tokens_of(request, core)
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise InvalidRequest(f"The prompt has token ids outside the vocabulary of {vocabulary}.", param="prompt")
    if params.logit_bias and max(params.logit_bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias has ids outside the vocabulary of {vocabulary}.", param="logit_bias")
    if len(tokens) >= core.max_context:
        raise PromptTooLong(
            f"The prompt has {len(tokens)} tokens; prompt and answer together may have {core.max_context}.",
            param="prompt",
            hint="Shorten the prompt.",
        )
    if found := unserved(params) or ("protection" if request.answered else None):
        raise InvalidRequest(f"The engine vllm does not serve {found} here.", param=found, hint=LEAVE_IT_OUT)


def _tokens_of(request: EngineRequest, core: Core) -> tuple[int, ...]:
    if not request.partitions:
        if not request.prompt:
            raise InvalidRequest("The prompt is empty.", param="prompt", hint="Send at least one token.")
        return request.prompt
    [partition, *others] = request.partitions
    if others or request.prompt or request.made or partition.origin or partition.rotation or not core.asks_vaults:
        raise InvalidRequest("The engine vllm continues one answer after its first token.", param="partitions")
    if request.params.max_tokens < 2:
        raise InvalidRequest("The answer has ended with its first token.", param="max_tokens")
    params = request.params
    penalties = {
        "repetition_penalty": params.repetition_penalty != 1,
        "presence_penalty": params.presence_penalty != 0,
        "frequency_penalty": params.frequency_penalty != 0,
    }
    for name in (name for name, is_asked in penalties.items() if is_asked):
        why = f"{name}: At this level vLLM does not count an answer's first token, which the vault chose."
        raise InvalidRequest(why, param=name, hint=LEAVE_IT_OUT)
    return (partition.first,)
