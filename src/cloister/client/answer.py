"""What comes back for a sealed message: an answer under seal, or a gateway's refusal in the clear.

An answer is believed frame by frame, and whole only with its authenticated end. A refusal in the clear may come from
anybody on the way: nothing of it is passed on but its status and, where it is one we know, its code. No sockets here.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from cloister.channel.envelope import CONTENT_TYPE, InnerHead
from cloister.channel.stream import FrameKind, StreamOpener
from cloister.errors import (
    ChannelBroken,
    ChannelKeyUnknown,
    CloisterError,
    InvalidRequest,
    MessageRepeated,
)

LAST_EVENT = b"data: [DONE]\n\n"
"""Who reads this takes a streamed answer for whole, and reads no further. So it is held until the answer is."""

MAX_REFUSAL_BYTES = 64 * 1024
_MAX_RETRY_AFTER_S = 60
_CODES = frozenset(("queue_full", "service_unavailable", "body_too_large", "body_timeout", "not_found", "foreign_host"))


class SealedAnswer:
    """Opens one answer as it arrives."""

    def __init__(self, opener: StreamOpener) -> None:
        self._opener = opener
        self._held = b""
        self.head: InnerHead | None = None

    @property
    def ended(self) -> bool:
        """Whether the authenticated end was seen."""
        return self._opener.ended

    def feed(self, data: bytes) -> bytes:
        """The body's bytes that can be believed now. ChannelBroken if something was done to the stream."""
        pieces = [self._held] if self._held else []
        for kind, content in self._opener.feed(data):
            if kind is FrameKind.DATA:
                pieces.append(content)
            elif kind is FrameKind.HEAD:
                self.head = InnerHead.decode(content)
        believed = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if believed.endswith(LAST_EVENT) and not self._opener.ended:
            self._held = believed
            return b""
        self._held = b""
        return believed

    def finish(self) -> None:
        """The connection's answer is over: ChannelBroken unless the sealed one is."""
        self._opener.finish()

    def close(self) -> None:
        """Nobody reads on."""
        self._opener.close()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not served, in OpenAI's shape and our own words."""

    status: int
    message: str
    code: str | None = None
    retry_after: int | None = None
    param: str | None = None

    @classmethod
    def of(cls, error: CloisterError, status: int = 400) -> Refusal:
        """The refusal that tells of an error met on this machine."""
        param = error.param if isinstance(error, InvalidRequest) else None
        return cls(status, str(error), error.code, param=param)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        again = () if self.retry_after is None else (("retry-after", str(self.retry_after)),)
        return (("content-type", "application/json"), ("content-length", str(len(self.body))), *again)

    @property
    def body(self) -> bytes:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def is_sealed(status: int, content_type: str) -> bool:
    """Whether an answer in the clear announces one under seal."""
    return status == 200 and content_type.partition(";")[0].strip().lower() == CONTENT_TYPE


def read_refusal(status: int, retry_after: str, body: bytes) -> Refusal:
    """What an answer without a seal means: a refusal to pass on, or the error it amounts to."""
    if not 400 <= status <= 599:
        raise ChannelBroken(
            f"The node answered a sealed request without a seal (HTTP {status}).",
            hint="Somebody stands between, or that is no Cloister node. The answer was not read.",
        )
    code = _code(body)
    if status == 409 and code == ChannelKeyUnknown.code:
        raise ChannelKeyUnknown("The node does not hold the channel key it was verified with any more.")
    if status == 409 and code == MessageRepeated.code:
        raise MessageRepeated(
            "The node has received this very message before.", hint="Somebody on the way repeats messages."
        )
    if code == ChannelBroken.code:
        raise ChannelBroken("The node could not open the sealed request.", hint="It was altered on its way.")
    known = code if code in _CODES else None
    seconds = int(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6 else None
    return Refusal(
        status,
        f"The sealed request was refused before it reached the node's inside (HTTP {status}"
        f"{f', {known}' if known else ''}). This refusal is not authenticated.",
        known,
        None if seconds is None else min(seconds, _MAX_RETRY_AFTER_S),
    )


class _ErrorBody(msgspec.Struct):
    code: str | None = None


class _Error(msgspec.Struct):
    error: _ErrorBody


def _code(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body[:MAX_REFUSAL_BYTES], type=_Error).error.code
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
