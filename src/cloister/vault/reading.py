"""From a confided prompt's bytes to tokens, or to an error that says what is wrong and nothing of the prompt."""

from __future__ import annotations

import msgspec

from cloister.errors import InvalidRequest, LevelUnavailable, PromptTooLong
from cloister.messages.generation import SamplingParams, Submit
from cloister.messages.vault import Confide, VaultLevel
from cloister.models.decoder import Decoder
from cloister.prompts.reading import PromptReading
from cloister.vault.opened import opened

TENANT = "vault"
"""All of a vault's requests are of one tenant: whose, it is not told."""


class Reader:
    """Reads what is confided to this vault."""

    def __init__(self, reading: PromptReading, decoder: Decoder, levels: tuple[VaultLevel, ...]) -> None:
        self._reading = reading
        self._vocabulary = decoder.vocabulary
        self._max_context = decoder.max_context
        self._levels = levels

    def read(self, confided: Confide) -> Submit:
        """The request in tokens, with no more to generate than the context has room for."""
        params = confided.params
        self._check(params, confided.level)
        prompt = self._reading.read(opened(confided.prompt))
        length = len(prompt.tokens)
        left = min(params.max_tokens, self._max_context - length)
        if left < 1:
            raise PromptTooLong(
                f"The prompt has {length} tokens; prompt and output together may have {self._max_context}.",
                param="prompt",
                hint="Shorten the prompt.",
            )
        params = msgspec.structs.replace(params, max_tokens=left)
        return Submit(confided.request_id, TENANT, prompt.tokens, params, public=prompt.public)

    def _check(self, params: SamplingParams, level: VaultLevel) -> None:
        """Refuse what needs the whole prompt where it must not be, and what names no token."""
        if level not in self._levels:
            raise LevelUnavailable(f"This model is not served at '{level}' here.", param="protection")
        if params.max_tokens < 1:
            raise InvalidRequest("At least one token must be asked for.", param="max_tokens")
        if params.prompt_logprobs is not None:
            raise InvalidRequest(f"The prompt's logprobs are not told at '{level}'.", param="logprobs")
        if level == "partitioned" and params.repetition_penalty != 1.0:
            raise InvalidRequest(
                "A repetition penalty needs the prompt where the answer is generated.",
                param="repetition_penalty",
                hint="Use presence_penalty or frequency_penalty, or the level 'isolated'.",
            )
        if params.logit_bias and max(params.logit_bias) >= self._vocabulary:
            raise InvalidRequest(
                f"logit_bias has ids outside the vocabulary of {self._vocabulary}.", param="logit_bias"
            )
