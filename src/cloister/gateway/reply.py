"""How an endpoint writes what was generated: whole, or as the events of a stream.

A reply knows JSON shapes. It does not know where the text comes from.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from cloister.gateway.choice import Delta
from cloister.gateway.text import Tokenizer
from cloister.messages.generation import Progress

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def usage_of(prompt_tokens: int, output_tokens: int) -> Usage:
    return Usage(prompt_tokens, output_tokens, prompt_tokens + output_tokens)


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999.0 for a token that cannot come."""
    return max(logprob, -9999.0)


def comment(progress: Progress) -> bytes:
    """How far a slow answer is, as a comment among the events: a line that begins with a colon, which readers of events
    skip (HTML standard, §9.2.6). Counts and a pace; nothing of what is computed."""
    pace = progress.seconds_per_token
    estimate = "" if pace is None else f", about {pace:.2g} s per token"
    return f": token {progress.token}, layer {progress.layer} of {progress.layers}{estimate}\n\n".encode()


class Reply(ABC):
    """One endpoint's way of writing one answer.

    A stream writes thousands of events that differ in a few bytes: what is constant is encoded once.
    """

    id_prefix: str
    chunk_object: str

    def __init__(self, model: str, created: int, tokenizer: Tokenizer, *, include_usage: bool) -> None:
        self.id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self.model = model
        self.created = created
        self.tokenizer = tokenizer
        head = {"id": self.id, "object": self.chunk_object, "created": created, "model": model}
        self._head = b"data: " + encode(head)[:-1]
        self._choice_head = self._head + b',"choices":[{"index":'
        self._choice_tail = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"

    @abstractmethod
    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """The events that come before a choice's first text."""

    @abstractmethod
    def events(self, index: int, delta: Delta) -> bytes:
        """The events that carry what is new in a choice; possibly none."""

    def usage_event(self, usage: Usage) -> bytes:
        """The event before the last, when the client asked for it."""
        return b"".join((self._head, b',"choices":[],"usage":', encode(usage), b"}\n\n"))

    def event(self, index: int, content: bytes, scores: bytes, finish: bytes) -> bytes:
        """One event about one choice; `content` is the member that differs between the endpoints."""
        head, tail = self._choice_head, self._choice_tail
        return b'%b%d,%b,"logprobs":%b,"finish_reason":%b%b' % (head, index, content, scores, finish, tail)

    def label(self, token: int) -> str:
        """A token as text; one that is no whole character is spelt in bytes, as OpenAI does."""
        raw = self.tokenizer.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
