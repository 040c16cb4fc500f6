"""What children write to their standard output and error: log lines. The second filter: only templates that are listed
here pass, with numbers, names of errors and libraries, and our own files. All else is counted, and not shown."""

import asyncio
import builtins
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from cloister import errors
from cloister.messages.log_line import MAX_LINE_BYTES, LogLine, LogWord
from cloister.process.log_lines import LIBRARY, NO_LITERAL, SENTENCES

log = logging.getLogger(__name__)

_EDGE = {"gateway", "sealed-api", "key-waiting", "unsealer", "gpu-reporter", "detector", "parties", "mpc-client"}
_LINK = {"doorkeeper", "bridge-near", "bridge-far"}
ROLES = _EDGE | _LINK | {"template", "forkserver", "packer", "converter", "engine"}
TEMPLATES = frozenset(
    {
        LIBRARY,
        NO_LITERAL,
        "Ended by %s.",
        "Unexpected %s.",
        "Unexpected %s in another process.",
        "A control socket failed: %s.",
        "A bridge ended. %s",
        "A step failed: %s.",
        "Serving with the slow reference kernels. %s",
        "A connection cannot be accepted: %s.",
        "A door failed: %s.",
        "Party %d ended (%d); starting it again.",
        "Connections that did not prove who they are: %d more.",
        "A file that is not of the release would have run.",
    }
)
_OTHERS = "CutOff DecodeError ValidationError ClientDisconnect HTTPException RequestError SSLError TemplateError error"
_LIBRARIES = "asyncio uvicorn fastapi starlette concurrent transformers torch tokenizers vllm"
NAMES = (
    {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
    | {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    | {*errors.CODES, *_OTHERS.split(), *_LIBRARIES.split()}
)
"""What a line may name; any other name becomes "error"."""
_NAMED = re.compile(r"(\w{1,60})(?: at (\w{1,60}\.py):(\d{1,6}))?")
_READ_BYTES = 1 << 16
REPORT_S = 1.0


class ChildLines:
    """A pipe. Children inherit its end `writer`, which never blocks them."""

    def __init__(self, write: Callable[[LogLine], None]) -> None:
        self._write = write
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._rest = b""
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self.read)

    def read(self) -> None:
        with suppress(BlockingIOError):
            self.feed(os.read(self._reader, _READ_BYTES))

    def feed(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for each in whole:
            self._pass_on(each)
        if len(self._rest) > MAX_LINE_BYTES:
            self._drop()
            self._rest = b""

    def report(self) -> None:
        """How many lines were dropped since the last report."""
        dropped, self._dropped = self._dropped, 0
        if dropped:
            log.warning("Processes wrote lines that are no log lines, which are not shown: %d.", dropped)

    def _pass_on(self, data: bytes) -> None:
        try:
            line = msgspec.json.decode(data, type=LogLine)
        except msgspec.DecodeError:
            self._drop()
            return
        if (shown := permitted(line)) is None:
            self._drop()
        elif logging.getLogger().isEnabledFor(getattr(logging, line.severity.upper())):
            self._write(shown)

    def _drop(self) -> None:
        if not self._dropped and self._loop is not None:
            self._loop.call_later(REPORT_S, self.report)
        self._dropped += 1


def permitted(line: LogLine) -> LogLine | None:
    """What of it may be shown: a process that was taken over may have written anything."""
    if line.process not in ROLES or line.template not in TEMPLATES:
        return None
    return replace(line, words=tuple(map(_harmless, line.words)))


def _harmless(word: LogWord) -> LogWord:
    if isinstance(word, int | float) or word in SENTENCES:
        return word
    found = _NAMED.fullmatch(word)
    name = found[1] if found and found[1] in NAMES else "error"
    return f"{name} at {found[2]}:{found[3]}" if found and found[2] in _our_files() else name


@cache
def _our_files() -> frozenset[str]:
    return frozenset(path.name for path in Path(errors.__file__).parent.rglob("*.py"))
