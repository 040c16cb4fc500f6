"""A prompt on its way to whoever may read it: bytes to everybody else.

The gateway makes these bytes and hands them on; the vault (or, at the level `open`, the gateway itself) reads them.
Encrypting them for the vault alone changes only who can make sense of the bytes, not who carries them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.errors import ProtocolError
from cloister.messages.generation import TokenId

MAX_PROMPT_BYTES = 8 * 1024 * 1024


class _Silent:
    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Turn(_Silent, Struct, frozen=True, array_like=True):
    """One message of a chat."""

    role: Annotated[str, Meta(max_length=64)]
    content: str


class ChatPrompt(_Silent, Struct, frozen=True, tag="chat", forbid_unknown_fields=True):
    """A conversation, to be put into the model's own template."""

    messages: tuple[Turn, ...]


class TextPrompt(_Silent, Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """A raw text to continue."""

    text: str


class TokenPrompt(_Silent, Struct, frozen=True, tag="tokens", forbid_unknown_fields=True):
    """Token ids to continue."""

    tokens: tuple[TokenId, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt
PromptBytes = Annotated[bytes, Meta(max_length=MAX_PROMPT_BYTES)]

_decoder: msgspec.msgpack.Decoder[Prompt] = msgspec.msgpack.Decoder(Prompt)


def write_prompt(prompt: Prompt) -> bytes:
    """The prompt as bytes."""
    return msgspec.msgpack.encode(prompt)


def read_prompt(data: bytes) -> Prompt:
    """The prompt these bytes hold."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:  # ValueError: text that is not UTF-8
        raise ProtocolError(f"A prompt does not decode: {type(wrong).__name__}.") from None
