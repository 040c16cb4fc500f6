"""From what was confided to a prompt that can be read. A sealed prompt is opened here and nowhere else; its key is
overwritten as soon as it was tried."""

from __future__ import annotations

from cloister.channel.sealing import open_prompt
from cloister.messages.prompts import LockedPrompt, Prompt, read_prompt
from cloister.prompts.json_prompt import read_given


def opened(prompt: bytes | LockedPrompt) -> Prompt:
    """The prompt; ChannelBroken if the key does not open it."""
    if isinstance(prompt, bytes):
        return read_prompt(prompt)
    try:
        written = open_prompt(prompt.key, prompt.enc, prompt.index, prompt.data)
    finally:
        prompt.key[:] = bytes(len(prompt.key))
    return read_given(prompt.field, written)
