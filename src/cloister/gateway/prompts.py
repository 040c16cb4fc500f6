"""From the prompt in a request's body to a job: tokens where the provider may read them, unread bytes where not.

At the level `open` the prompt is read here, a long one in a thread, so that it does not hold up everybody's tokens. At
the other levels nobody in this process looks into it. This module keeps no prompt.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from cloister.gateway.text import Tokenizer
from cloister.messages.frontend import Serving
from cloister.messages.prompts import ChatPrompt, Prompt, TextPrompt, write_prompt
from cloister.prompts.json_prompt import check_size
from cloister.prompts.reading import PromptReading, ReadPrompt

_LONG_CHARACTERS = 8192
_MANY_MESSAGES = 64


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
            or sum(len(turn.content) for turn in prompt.messages) > _LONG_CHARACTERS
        )
    return isinstance(prompt, TextPrompt) and len(prompt.text) > _LONG_CHARACTERS
