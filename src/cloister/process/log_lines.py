"""Log lines: time, severity, process, message, request. A message is a literal of our code, its arguments are numbers
and short names; of anything else only the literal shows. No traceback is printed. A child's go to its parent, which
filters again (process.child_lines)."""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from time import time

import msgspec

from cloister.errors import CloisterError, InvalidRequest
from cloister.messages.log_line import MAX_LINE_BYTES, LogFormat, LogLine, LogWord, Severity

REQUEST: ContextVar[str] = ContextVar("request", default="")  # the X-Request-Id of what is worked on
FOR_PARENT = "CLOISTER_LOG_LINES"  # set where standard error leads to a parent that reads lines
NO_LITERAL = "A message that is no literal of the code is not shown."
LIBRARY = "The library %s logged a line, which is not shown."
SENTENCES = frozenset(
    {
        "The native kernels need a C compiler and none was found.",
        "The other side of a link does not know the key: both machines need the same key file.",
        "The other side of a link refused us: it has another key or another version.",
        "The other side of a link speaks another protocol or another version of it.",
        "A record on a link was altered, repeated, left out or moved.",
        "The connection was cut off.",
    }
)
"""What a CloisterError of a child may say as it is; of others the code shows."""
MOST_OF_AN_ERROR = 400

_WORD = re.compile(r"[A-Za-z0-9_.:@/+<>\[\]-]{1,100}( at [\w.<>-]{1,50}:\d{1,6})?")
_NAMES = frozenset(
    {"sealed API", "fork server", "fork server or service", "key waiting", "GPU reporter", "attention process"}
    | {"vault or its bridge", "MPC client or a party"}
)
"""Processes whose names are more than a word."""


class Unsafe(Exception):
    """An argument that may hold a user's content."""


def begin_logging(process: str, log_format: LogFormat = "text") -> None:
    """Takes the place of every handler that this process had."""
    handler: LineHandler
    if os.environ.get(FOR_PARENT):
        handler = LineHandler(process, _to_parent, of_child=True)
    else:
        handler = LineHandler(process, writer_of(log_format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.raiseExceptions = False
    if log_format == "json":
        logging.getLogger("cloister").setLevel(logging.INFO)


def writer_of(log_format: LogFormat) -> Callable[[LogLine], None]:
    written = as_json if log_format == "json" else as_text
    return lambda line: print(written(line, time()), file=sys.stderr, flush=True)


def message_of(line: LogLine) -> str:
    try:
        return line.template % line.words if line.words else line.template
    except (TypeError, ValueError):
        return line.template


def as_text(line: LogLine, moment: float) -> str:
    request = f" [{line.request}]" if line.request else ""
    return f"{_stamp(moment)} {line.severity.upper():7} {line.process}: {message_of(line)}{request}"


def as_json(line: LogLine, moment: float) -> str:
    shown = {"time": _stamp(moment), "severity": line.severity, "process": line.process, "message": message_of(line)}
    return json.dumps({**shown, "template": line.template, **({"request": line.request} if line.request else {})})


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LineHandler(logging.Handler):
    """The first filter."""

    def __init__(self, process: str, write: Callable[[LogLine], None], *, of_child: bool = False) -> None:
        super().__init__()
        self._process, self._write, self._of_child = process, write, of_child

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a line that cannot be written is no reason to stop
            self._write(self.line(record))

    def line(self, record: logging.LogRecord) -> LogLine:
        severity: Severity = _SEVERITIES.get(record.levelno, "error")
        words: tuple[LogWord, ...]
        if record.name.partition(".")[0] not in _OURS:  # libraries put their input into their messages
            template, words = LIBRARY, (record.name.partition(".")[0][:40],)
        elif not _is_literal(record):
            template, words = NO_LITERAL, ()
        else:
            template = record.msg
            try:
                given = record.args if isinstance(record.args, tuple) else (record.args,) if record.args else ()
                words = tuple(self._word(each) for each in given)
            except Unsafe:
                words = ()
        return LogLine(severity, self._process, template, words, REQUEST.get())

    def _word(self, value: object) -> LogWord:
        """Unsafe unless it is a number, a member of an Enum, a short name, our own error, or an operator's path."""
        if isinstance(value, Enum):
            value = value.value
            return value if isinstance(value, int | float) else str(value)
        if isinstance(value, int | float):
            return value
        if isinstance(value, CloisterError):
            return self._of_error(value)
        if isinstance(value, Path) and not self._of_child:
            return _printable(str(value))
        if isinstance(value, str) and (value in _NAMES or _WORD.fullmatch(value)):
            return value
        raise Unsafe

    def _of_error(self, error: CloisterError) -> str:
        """An invalid request's message may name what the request said."""
        if isinstance(error, InvalidRequest):
            return error.code
        if self._of_child:
            return error.message if error.message in SENTENCES else error.code
        return _printable(str(error))


_OURS: Collection[str] = ("cloister", "cloister_mpc", "cloister_vllm")
_SEVERITIES: dict[int, Severity] = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:MOST_OF_AN_ERROR]


def _is_literal(record: logging.LogRecord) -> bool:
    """Whether the function that logs has the message as a constant: so an f-string does not pass."""
    frame = sys._getframe()
    while (before := frame.f_back) is not None:
        frame = before
        code = frame.f_code
        if code.co_filename == record.pathname and code.co_name == record.funcName:
            return any(each is record.msg or each == record.msg for each in code.co_consts if type(each) is str)
    return False


def _to_parent(line: LogLine) -> None:
    encoded = msgspec.json.encode(line) + b"\n"
    if len(encoded) <= MAX_LINE_BYTES:
        os.write(2, encoded)  # whole or, where the pipe is full, not at all
