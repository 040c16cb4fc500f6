"""Child process → its parent, one JSON object a line on standard error: a line of its log, typed and bounded."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.types import SilentRepr

MAX_LINE_BYTES = 2048
LogFormat = Literal["text", "json"]
Severity = Literal["debug", "info", "warning", "error", "critical"]
LogWord = int | float | Annotated[str, Meta(max_length=160)]


class LogLine(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """`template` with `words` is the message. `request`: as in the header X-Request-Id, or none."""

    severity: Severity
    process: Annotated[str, Meta(pattern="^[a-z][a-z-]{0,14}$")]
    template: Annotated[str, Meta(max_length=200)]
    words: Annotated[tuple[LogWord, ...], Meta(max_length=8)] = ()
    request: Annotated[str, Meta(pattern="^(req_[0-9a-f]{24})?$")] = ""
