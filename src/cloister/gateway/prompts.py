"""Prompts become token ids here. A long one is read in a thread, so that it does not hold up everybody's tokens.

This module knows text and tokens; it keeps neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from jinja2 import TemplateError

from cloister.errors import InvalidRequest, PromptTooLong
from cloister.gateway.prompt_field import OnePrompt
from cloister.gateway.schema import ChatMessage
from cloister.gateway.text import Tokenizer
from cloister.messages.generation import Ready

_LONG_CHARACTERS = 8192
_MANY_MESSAGES = 64
# Models' templates know three roles; OpenAI's newer name for the first is "developer".
_ROLES = {"developer": "system"}


class PromptReader:
    """Reads prompts with the model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer, ready: Ready) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = ready.vocabulary
        self._context = ready.max_context
        self._longest_token = max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocabulary))
        # One thread: many long prompts at once must not take every core from the engine.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt-reader")

    async def chat(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """The conversation in the model's own template, up to where the assistant speaks next."""
        turns = [{"role": _ROLES.get(message.role, message.role), "content": message.text} for message in messages]
        characters = sum(len(turn["content"]) for turn in turns)
        self._check_length(characters, "messages")

        def render() -> list[int]:
            try:
                return self._tokenizer.render_chat(turns)
            except TemplateError:
                # This is how a template refuses an order of roles; what it says may quote the messages.
                raise InvalidRequest(
                    "messages: The model's chat template does not accept this conversation.",
                    param="messages",
                    hint="Many models want one system message first, then user and assistant in turn.",
                ) from None

        tokens = await self._run(render, long=characters > _LONG_CHARACTERS or len(turns) > _MANY_MESSAGES)
        return self._checked(tokens, "messages")

    async def plain(self, prompt: OnePrompt) -> tuple[int, ...]:
        """A completion's prompt: text is encoded, token ids are checked."""
        if not isinstance(prompt, str):
            return self._checked(prompt, "prompt")
        self._check_length(len(prompt), "prompt")

        def encode() -> list[int]:
            # A raw prompt begins as the model's training texts did: with its begin-of-text token, if it has one.
            return self._tokenizer.encode(prompt, add_special_tokens=True)

        tokens = await self._run(encode, long=len(prompt) > _LONG_CHARACTERS)
        return self._checked(tokens, "prompt")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _check_length(self, characters: int, param: str) -> None:
        """Refuse what cannot fit, however well it is tokenised, before seconds are spent on tokenising it."""
        least = -(-characters // self._longest_token)
        if least > self._context:
            raise PromptTooLong(
                f"This model's context holds {self._context} tokens; the prompt has {least} or more.",
                param=param,
                hint="Shorten the prompt.",
            )

    def _checked(self, tokens: Sequence[int], param: str) -> tuple[int, ...]:
        if not tokens:
            raise InvalidRequest(f"{param}: There is no token in it.", param=param)
        if max(tokens) >= self._vocabulary:
            raise InvalidRequest(f"{param}: Token ids must be below {self._vocabulary}.", param=param)
        return tuple(tokens)

    async def _run(self, read: Callable[[], list[int]], *, long: bool) -> list[int]:
        if not long:
            # Many short prompts in one request are as long as one long one: let others in between.
            await asyncio.sleep(0)
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._thread, read)
