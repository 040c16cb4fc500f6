"""From the body of a request to the backend's job and parameters.

At the level `open` the prompt is read here, a long one in a thread, so that it does not hold up everybody's tokens. At
the other levels nobody in this process looks into it. This module keeps no prompt.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor

from cloister.errors import InvalidRequest, PromptTooLong
from cloister.gateway.schema import GenerationRequest
from cloister.messages.frontend import Serving
from cloister.messages.generation import SamplingParams
from cloister.messages.prompts import ChatPrompt, Prompt, TextPrompt, write_prompt
from cloister.prompts.json_prompt import check_size
from cloister.prompts.reading import PromptReading, ReadPrompt
from cloister.prompts.tokenizer import Tokenizer

_LONG_CHARACTERS = 8192
_MANY_MESSAGES = 64
# Below this, dividing logits by the temperature overflows; the limit of the distribution is the greedy choice anyway.
_GREEDY_BELOW = 1e-4
_SMALLEST_TOP_P = 1e-6
_SEED_MASK = 2**63 - 1


def for_vault(prompt: Prompt) -> bytes:
    """The prompt for a vault."""
    data = write_prompt(prompt)
    check_size(len(data))
    return data


class PromptReader:
    """Reads prompts for the level `open`, the way vaults do."""

    def __init__(self, tokenizer: Tokenizer, serving: Serving) -> None:
        self._reading = PromptReading(tokenizer, serving.vocabulary, serving.max_context)
        # One thread: many long prompts at once must not take every core from the engine.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt-reader")

    async def read(self, prompt: Prompt) -> ReadPrompt:
        """The prompt's tokens, and how many of them are public."""
        if _is_long(prompt):
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._reading.read, prompt)
        # Many short prompts in one request are as long as one long one: let others in between.
        await asyncio.sleep(0)
        return self._reading.read(prompt)

    def start(self) -> None:
        """Have the thread now: where threads cannot be started later."""
        self._thread.submit(int).result()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _is_long(prompt: Prompt) -> bool:
    if isinstance(prompt, ChatPrompt):
        return (
            len(prompt.messages) > _MANY_MESSAGES
            or sum(len(message.content) for message in prompt.messages) > _LONG_CHARACTERS
        )
    return isinstance(prompt, TextPrompt) and len(prompt.text) > _LONG_CHARACTERS


def answer_tokens(prompt_tokens: int | None, asked: int | None, default: int, max_context: int) -> int:
    """How many tokens the answer may have; PromptTooLong when it and the prompt do not fit the context together.

    Where the prompt's length is not known here (None), whoever reads the prompt caps the answer to what is left.
    """
    room = max_context - (1 if prompt_tokens is None else prompt_tokens)
    wanted = asked if asked is not None else max(1, min(default, room))
    if wanted <= room:
        return wanted
    if prompt_tokens is None:
        requested = f"{wanted} were requested for the answer alone."
    else:
        requested = f"{prompt_tokens + wanted} were requested ({prompt_tokens} in the prompt, {wanted} for the answer)."
    raise PromptTooLong(
        f"This model's context holds {max_context} tokens; {requested}",
        param="max_tokens" if room > 0 else None,
        hint="Shorten the prompt or ask for fewer tokens.",
    )


def sampling_params(
    body: GenerationRequest,
    *,
    max_tokens: int,
    logprobs: int | None,
    vocabulary: int,
    stop_tokens: tuple[int, ...],
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The parameters of every choice, but for seeds; InvalidRequest if they name tokens the model does not have."""
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
