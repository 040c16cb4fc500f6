"""From a prompt's bytes to tokens, or to an error whose message has no words of the prompt. A sealed prompt is opened
here and nowhere else; its key is overwritten as soon as it was tried."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec

from cloister.channel.sealing import open_prompt
from cloister.engine.base import EngineRequest
from cloister.errors import FormRefused, InvalidRequest, LevelUnavailable, PromptTooLong, ProtocolError
from cloister.grammar.compiled import check
from cloister.levels import LEVELS, Decodes
from cloister.messages.controller_vault import AssignPrompt
from cloister.messages.prompts import ChatPrompt, LockedPrompt, Prompt
from cloister.messages.types import SamplingParams
from cloister.prompts.json_prompt import read_given
from cloister.prompts.reading import PromptReading
from cloister.vault.prompt_texts import without_marks
from cloister.vault.recitation import SystemPrompt

if TYPE_CHECKING:
    from cloister.models.decoder import Decoder  # loads torch, which the MPC client does without

TENANT = "vault"  # a vault does not get its tenant's name


_decoder: msgspec.msgpack.Decoder[Prompt] = msgspec.msgpack.Decoder(Prompt)


def read_prompt(data: bytes) -> Prompt:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:  # ValueError: text that is not UTF-8
        raise ProtocolError(f"A prompt does not decode: {type(wrong).__name__}.") from None


def opened(prompt: bytes | LockedPrompt) -> Prompt:
    """ChannelBroken if the key does not open it."""
    if isinstance(prompt, bytes):
        return read_prompt(prompt)
    try:
        written = open_prompt(prompt.key, prompt.enc, prompt.index, prompt.data)
    finally:
        prompt.key[:] = bytes(len(prompt.key))
    return read_given(prompt.field, written)


def system_text(prompt: Prompt) -> str:
    messages = prompt.messages if isinstance(prompt, ChatPrompt) else ()
    texts = [each.content for each in messages if each.role in ("system", "developer")]
    if not any(map(str.strip, texts)):
        raise InvalidRequest(
            "There is no system message whose recitation could be stopped.",
            param="stop_recitation",
            hint="Send a message with the role `system`, or leave the field out.",
        )
    return "\n".join(texts)


class Reader:
    def __init__(
        self,
        reading: PromptReading,
        decoder: Decoder,
        levels: Collection[str],
        *,
        compact: bool = True,
        shows_public: bool = True,
    ) -> None:
        """`shows_public`: the service takes the public beginning of a prompt as tokens; else it stays here."""
        self._reading = reading
        self._vocabulary = decoder.vocabulary
        self._max_context = decoder.max_context
        self._compact = compact
        self._shows_public = shows_public
        self._windowed = any(decoder.windows)  # then a key's place in its blocks must be its position
        self._levels = levels

    def read(self, assigned: AssignPrompt) -> tuple[list[EngineRequest], SystemPrompt | None]:
        """`assigned` as requests, and what its answers must not recite, if it asks for that."""
        prompt, system = self.prompt(assigned), None
        [first] = self.several(assigned, [prompt])
        if assigned.params.stop_recitation:
            text, messages = system_text(prompt), cast(ChatPrompt, prompt)
            system = SystemPrompt(text, self._reading.system_span(messages, first.prompt))
        again, params = msgspec.structs.replace, first.params
        others = [(each.request_id, params.seeded(each.seed)) for each in assigned.also]
        return [first, *(again(first, request_id=one, params=seeded) for one, seeded in others)], system

    def prompt(self, assigned: AssignPrompt) -> Prompt:
        self._check(assigned.params, assigned.level)
        if _compact(assigned) and not self._compact:
            raise InvalidRequest(
                "This node computes prompts exactly and no other way.", param="obfuscation", hint="Leave compact out."
            )
        prompt = opened(assigned.prompt)
        if getattr(prompt, "hidden", None) is not None and not LEVELS[assigned.level].obfuscates:
            prompt = without_marks(prompt)
        if form := self._reading.form(prompt):
            if LEVELS[assigned.level].decodes is not Decodes.VAULT:
                raise FormRefused("A form is followed where a vault decodes alone.", param="response_format")
            check(form)
            prompt = msgspec.structs.replace(prompt, form=form)
        return prompt

    def several(self, assigned: AssignPrompt, prompts: Sequence[Prompt]) -> list[EngineRequest]:
        """Their answers may all be as long as the longest prompt leaves room for."""
        params, read = assigned.params, [self._reading.read(prompt) for prompt in prompts]
        if not self._shows_public:
            read = [replace(prompt, public=0) for prompt in read]
        length = max(len(prompt.tokens) for prompt in read)
        left = min(params.max_tokens, self._max_context - length)
        if left < (0 if params.embed else 1):
            raise PromptTooLong(
                f"The prompt has {length} tokens; prompt and answer together may have {self._max_context}.",
                param="prompt",
                hint="Shorten the prompt.",
            )
        params = msgspec.structs.replace(params.seeded(params.seed), max_tokens=left, grammar=prompts[0].form)
        compact = _compact(assigned) and not self._windowed and len({prompt.public for prompt in read}) == 1
        return [
            EngineRequest(
                assigned.request_id, TENANT, prompt.tokens, params, prompt.public, policy="partition", compact=compact
            )
            for prompt in read
        ]

    def _check(self, params: SamplingParams, level: str) -> None:
        """Refuse what needs the whole prompt where it must not be, and what names no token."""
        if level not in self._levels:
            raise LevelUnavailable(f"This model is not served at '{level}' here.", param="protection")
        LEVELS[level].refuse(params.requested)
        if params.logit_bias and max(params.logit_bias) >= self._vocabulary:
            raise InvalidRequest(
                f"logit_bias has ids outside the vocabulary of {self._vocabulary}.", param="logit_bias"
            )


def _compact(assigned: AssignPrompt) -> bool:
    return assigned.obfuscation is not None and assigned.obfuscation.compact
