"""What the gateway asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class TextStream(Protocol):
    """Turns tokens into text as they come; bytes that are not yet a whole character are held back."""

    def push(self, tokens: Sequence[int], /) -> str: ...

    def finish(self) -> str: ...


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def stop_tokens(self) -> tuple[int, ...]: ...

    def encode(self, text: str, /, add_special_tokens: bool = False) -> list[int]: ...

    def decode(self, tokens: Sequence[int], /) -> str: ...

    def token_text(self, token: int, /) -> str: ...

    def token_bytes(self, token: int, /) -> bytes: ...

    def render_chat(self, messages: list[dict[str, Any]], /) -> list[int]: ...

    def render_chat_beside(
        self, messages: list[dict[str, Any]], twin: list[dict[str, Any]], /
    ) -> tuple[list[int], list[int]]: ...

    def stream(self) -> TextStream: ...
