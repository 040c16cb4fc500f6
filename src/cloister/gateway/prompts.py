"""From the prompt in a request's body to a job: tokens where the provider may read them, sealed bytes where not.

At the level `open` the prompt is read here, a long one in a thread, so that it does not hold up everybody's tokens. At
the other levels nobody in this process looks into it. This module keeps no prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cloister.errors import PromptTooLong
from cloister.gateway.prompt_field import OnePrompt
from cloister.gateway.schema import ChatMessage
from cloister.gateway.text import Tokenizer
from cloister.messages.front import Serving
from cloister.messages.prompts import (
    MAX_PROMPT_BYTES,
    ChatPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Turn,
    write_prompt,
)
from cloister.models.reading import PromptReading, ReadPrompt

_LONG_CHARACTERS = 8192
_MANY_MESSAGES = 64


def chat_prompt(messages: Sequence[ChatMessage]) -> ChatPrompt:
    """The conversation, still without a template."""
    return ChatPrompt(tuple(Turn(message.role, message.text) for message in messages))


def plain_prompt(given: OnePrompt) -> TextPrompt | TokenPrompt:
    """One prompt of a plain completion."""
    return TextPrompt(given) if isinstance(given, str) else TokenPrompt(given)


def sealed(prompt: Prompt) -> bytes:
    """The prompt for a vault."""
    data = write_prompt(prompt)
    if len(data) > MAX_PROMPT_BYTES:
        raise PromptTooLong(f"A prompt may have at most {MAX_PROMPT_BYTES} bytes.", hint="Shorten the prompt.")
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

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _is_long(prompt: Prompt) -> bool:
    if isinstance(prompt, ChatPrompt):
        return (
            len(prompt.messages) > _MANY_MESSAGES
            or sum(len(turn.content) for turn in prompt.messages) > _LONG_CHARACTERS
        )
    return isinstance(prompt, TextPrompt) and len(prompt.text) > _LONG_CHARACTERS
