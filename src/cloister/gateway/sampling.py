"""From a request's fields to the messages' `SamplingParams`. This module knows no text and no HTTP."""

from __future__ import annotations

import hashlib
import secrets

from cloister.errors import InvalidRequest
from cloister.gateway.schema import GenerationRequest
from cloister.messages.generation import SamplingParams

# Below this, dividing logits by the temperature overflows; the limit of the distribution is the greedy choice anyway.
_GREEDY_BELOW = 1e-4
_SMALLEST_TOP_P = 1e-6
_SEED_MASK = 2**63 - 1


def sampling_params(
    body: GenerationRequest,
    *,
    max_tokens: int,
    logprobs: int | None,
    vocabulary: int,
    stop_tokens: tuple[int, ...],
    seed: int,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The parameters of one choice; InvalidRequest if they name tokens the model does not have."""
    temperature = 1.0 if body.temperature is None else body.temperature
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    if bias and max(bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias: Token ids must be below {vocabulary}.", param="logit_bias")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_k=min(max(body.top_k or 0, 0), vocabulary),
        top_p=1.0 if body.top_p is None else max(body.top_p, _SMALLEST_TOP_P),
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        seed=seed,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=bias,
        stop_tokens=() if body.ignore_eos else stop_tokens,
        mpc_reveal=body.mpc_reveal or "token",
    )


def choice_seed(seed: int | None, choice: int) -> int:
    """The seed of one choice: the request's own for the first, derived from it for the others; random without one."""
    if seed is None:
        return secrets.randbits(63)
    if choice == 0:
        return seed & _SEED_MASK
    digest = hashlib.sha256(f"cloister choice {choice} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") & _SEED_MASK
