"""The first filter: whatever is logged, only literals, numbers, short names and our own errors become a line."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import InvalidRequest, SetupError
from cloister.messages.log_line import LogLine
from cloister.process.log_lines import (
    FOR_PARENT,
    LIBRARY,
    NO_LITERAL,
    REQUEST,
    LineHandler,
    as_json,
    as_text,
    message_of,
)
from cloister.process.watchdog import Finding
from tests.examples import examples

PROMPT = "my diagnosis is a secret"
log = logging.getLogger("cloister.test")


@pytest.fixture
def lines() -> Iterator[list[LogLine]]:
    made: list[LogLine] = []
    with handling(made):
        yield made


class handling:
    def __init__(self, made: list[LogLine], *, of_child: bool = False) -> None:
        self._handler = LineHandler("gateway", made.append, of_child=of_child)

    def __enter__(self) -> None:
        logging.getLogger().addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._handler)


def test_what_may_be_said_is_said(lines: list[LogLine]) -> None:
    log.warning("The %s %s; it is ended.", "sealed API", Finding.SILENT)
    log.error("Unexpected %s at level %s: %d of %.1f.", "ValueError at guard.py:12", "partitioned", 3, 0.25)
    log.error("The keys stay as they were. %s", SetupError("The keys file is not text.", hint="Look at it."))
    log.warning("%s is not a secret of %d bytes; remove it.", Path("/etc/one two"), 32)
    assert [message_of(line) for line in lines] == [
        "The sealed API does not answer; it is ended.",
        "Unexpected ValueError at guard.py:12 at level partitioned: 3 of 0.2.",
        "The keys stay as they were. The keys file is not text. Look at it.",
        "/etc/one two is not a secret of 32 bytes; remove it.",
    ]


def shown(lines: list[LogLine]) -> str:
    return "".join(as_text(line, 0.0) + as_json(line, 0.0) + repr(line.words) for line in lines)


def test_a_prompt_does_not_show_however_it_is_logged(lines: list[LogLine]) -> None:
    log.error("The prompt was %s.", PROMPT)
    log.error("It was %r.", [PROMPT])
    log.error("It was %s.", PROMPT.encode())
    log.error("It was %(prompt)s.", {"prompt": PROMPT})
    log.error("It was %s.", ValueError(PROMPT))
    log.error("It was %s.", InvalidRequest(PROMPT))
    log.error(f"It was {PROMPT}.")  # noqa: G004
    log.error("It was " + PROMPT)  # noqa: G003
    log.error(PROMPT.encode())
    log.error(ValueError(PROMPT))
    logging.getLogger("asyncio").error("It was " + PROMPT)  # noqa: G003
    try:
        raise ValueError(PROMPT)
    except ValueError:
        log.exception("It failed.", stack_info=True)
    text = shown(lines)
    assert len(lines) == 12 and "diagnosis" not in text and "secret" not in text and "Traceback" not in text
    templates = [line.template for line in lines]
    assert templates[0] == "The prompt was %s." and templates[-1] == "It failed."
    assert templates[6:11] == [NO_LITERAL] * 4 + [LIBRARY]
    assert message_of(lines[5]) == "It was invalid_request." and message_of(lines[10]).startswith("The library asyncio")


@examples(10)
@given(st.text(min_size=1))
def test_a_text_with_a_space_or_another_alphabet_never_shows(text: str) -> None:
    lines: list[LogLine] = []
    with handling(lines):
        log.error("It was %s.", text)
    words = lines[0].words
    assert not words or (words == (text,) and re.fullmatch(r"[!-~]{1,100}( at [!-~]{1,50})?", text))


def test_of_a_childs_errors_only_the_code_shows() -> None:
    lines: list[LogLine] = []
    with handling(lines, of_child=True):
        log.error("It fails. %s", SetupError(PROMPT))
        log.error("It fails. %s", SetupError("The native kernels need a C compiler and none was found."))
        log.error("It fails. %s", Path("/a"))
    assert [line.words for line in lines] == [
        ("setup_error",),
        ("The native kernels need a C compiler and none was found.",),
        (),
    ]


def test_a_line_has_time_severity_process_and_request(lines: list[LogLine]) -> None:
    before = REQUEST.set("req_0123456789abcdef01234567")
    log.error("Unexpected %s.", "KeyError")
    REQUEST.reset(before)
    moment = 1_800_000_000.1234
    assert as_text(lines[0], moment) == (
        "2027-01-15T08:00:00.123Z ERROR   gateway: Unexpected KeyError. [req_0123456789abcdef01234567]"
    )
    assert json.loads(as_json(lines[0], moment)) == {
        "time": "2027-01-15T08:00:00.123Z",
        "severity": "error",
        "process": "gateway",
        "message": "Unexpected KeyError.",
        "template": "Unexpected %s.",
        "request": "req_0123456789abcdef01234567",
    }


CHILD = """
import logging, sys
from cloister.process import hardening
from cloister.process.log_lines import begin_logging
begin_logging("gateway")
hardening.hide_tracebacks()
logging.getLogger("cloister.x").error("Unexpected %s.", sys.argv[1])
class Broken:
    def __del__(self): raise ValueError(sys.argv[1])
Broken()
raise ValueError(sys.argv[1])
"""


@pytest.mark.parametrize("parent", [False, True])
def test_a_process_writes_lines_for_its_parent_or_for_people(parent: bool) -> None:
    given = {**os.environ, **({FOR_PARENT: "1"} if parent else {})}
    done = subprocess.run([sys.executable, "-c", CHILD, PROMPT], capture_output=True, env=given, text=True)
    assert done.returncode == 1 and "diagnosis" not in done.stderr and "Traceback" not in done.stderr
    said = io.StringIO(done.stderr).readlines()
    if parent:
        found = [msgspec.json.decode(line, type=LogLine) for line in said]
        assert [line.template for line in found] == ["Unexpected %s.", "Unexpected %s.", "Ended by %s."]
        assert found[0].words == () and str(found[1].words[0]).startswith("ValueError")
    else:
        assert re.fullmatch(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ERROR   gateway: Unexpected %s\.\n", said[0])
        assert " CRITICAL gateway: Ended by ValueError at <string>:11." in said[2]
