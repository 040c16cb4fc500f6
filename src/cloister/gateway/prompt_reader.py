"""Prompts that the process with the HTTP API reads, in one thread beside its event loop where they are long."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from cloister.errors import FormRefused
from cloister.grammar.compiled import check, learn
from cloister.messages.controller_frontend import Serving
from cloister.messages.prompts import ChatPrompt, Prompt, TextPrompt
from cloister.prompts.reading import PromptReading, ReadPrompt
from cloister.prompts.tokenizer import Tokenizer

_LONG_CHARACTERS = 8192
_MANY_MESSAGES = 64
_MANY_TOKENS = 2048


class PromptReader:
    def __init__(self, tokenizer: Tokenizer, serving: Serving) -> None:
        self._tokenizer = tokenizer
        self._reading = PromptReading(tokenizer, serving.vocabulary, serving.max_context)
        # One thread: many long prompts at once must not take every core from the engine.
        self._thread = _thread()

    async def read(self, prompt: Prompt) -> ReadPrompt:
        if _is_long(prompt):
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._reading.read, prompt)
        # Many short prompts in one request are as long as one long one: let others in between.
        await asyncio.sleep(0)
        return self._reading.read(prompt)

    async def check(self, form: str) -> None:
        """FormRefused if it cannot be followed."""

        def refusal() -> FormRefused | None:
            try:
                learn(self._tokenizer)
                check(form)
            except FormRefused as refused:
                return refused.with_traceback(None)  # its frames hold the form
            return None

        if refused := await asyncio.get_running_loop().run_in_executor(self._thread, refusal):
            raise refused

    def form(self, prompt: Prompt) -> str:
        return self._reading.form(prompt)

    async def by_block(self, tokens: Sequence[int], block_tokens: int) -> tuple[str, tuple[int, ...]]:
        shown = partial(text_by_block, tokens, self._tokenizer, block_tokens)
        if len(tokens) > _MANY_TOKENS:
            return await asyncio.get_running_loop().run_in_executor(self._thread, shown)
        return shown()

    def start(self) -> None:
        """Start the thread now, for processes that cannot start one later."""
        self._thread.submit(int).result()

    def close(self, *, wait: bool = False) -> None:
        """It can be used again: a server may open its application twice. `wait`: until its thread has ended."""
        self._thread.shutdown(wait=wait, cancel_futures=True)
        self._thread = _thread()


def _is_long(prompt: Prompt) -> bool:
    if isinstance(prompt, ChatPrompt):
        characters = len(prompt.tools) + sum(len(message.content) for message in prompt.messages)
        return len(prompt.messages) > _MANY_MESSAGES or characters > _LONG_CHARACTERS
    return isinstance(prompt, TextPrompt) and len(prompt.text) > _LONG_CHARACTERS


def text_by_block(tokens: Sequence[int], tokenizer: Tokenizer, block_tokens: int) -> tuple[str, tuple[int, ...]]:
    """The tokens' text, and where each block ends in it. A character that a block's end cuts is in the next."""
    stream, pieces, ends, length = tokenizer.stream(), [], [], 0
    for start in range(0, len(tokens), block_tokens):
        pieces.append(stream.push(tokens[start : start + block_tokens]))
        length += len(pieces[-1])
        ends.append(length)
    pieces.append(stream.finish())
    return "".join(pieces), (*ends[:-1], length + len(pieces[-1]))


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="prompt-reader")
