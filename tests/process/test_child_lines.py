"""The second filter: a child that was taken over writes anything; what is listed alone reaches the parent's output."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cloister import errors
from cloister.messages.log_line import MAX_LINE_BYTES, LogLine
from cloister.process.child_lines import NAMES, ROLES, TEMPLATES, ChildLines, permitted
from cloister.process.hardening import WIPE_FREED_MEMORY
from cloister.process.log_lines import LIBRARY, NO_LITERAL, SENTENCES, message_of
from tests.sources import tree_of

SOURCE = Path(errors.__file__).parent
GOOD = LogLine("error", "gateway", "Unexpected %s.", ("ValueError at guard.py:3",))


def passed(*written: bytes) -> list[str]:
    shown: list[LogLine] = []
    lines = ChildLines(shown.append)
    for each in written:
        lines.feed(each)
    os.close(lines.writer)
    return [message_of(line) for line in shown]


def encoded(line: LogLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def test_a_listed_line_passes_also_in_pieces() -> None:
    whole = encoded(GOOD)
    assert passed(whole[:7], whole[7:] + whole[:3], whole[3:]) == ["Unexpected ValueError at guard.py:3."] * 2


@pytest.mark.parametrize(
    ("word", "shows"),
    [
        ("my secret", "error"),
        ("secret", "error"),
        ("SecretError", "error"),
        ("KeyError at secret.py:1", "KeyError"),
        ("asyncio", "asyncio"),
        ("setup_error", "setup_error"),
        (7, 7),
        (next(iter(SENTENCES)), next(iter(SENTENCES))),
    ],
)
def test_words_are_numbers_or_listed(word: str | int, shows: str | int) -> None:
    found = permitted(msgspec.structs.replace(GOOD, words=(word,)))
    assert found and found.words == (shows,)


@pytest.mark.parametrize(
    "written",
    [
        b"my secret\n",
        b"Traceback (most recent call last):\n",
        b"{}\n",
        encoded(GOOD)[:-2] + b',"more":"my secret"}\n',
        encoded(msgspec.structs.replace(GOOD, template="My secret.")),
        encoded(msgspec.structs.replace(GOOD, process="controller")),
        encoded(msgspec.structs.replace(GOOD, process="my-secret")),
        encoded(msgspec.structs.replace(GOOD, request="my-secret")),
        encoded(msgspec.structs.replace(GOOD, words=("x" * 161,))),
        encoded(msgspec.structs.replace(GOOD, words=(1,) * 9)),
        b"x" * (2 * MAX_LINE_BYTES) + b"\n",
    ],
)
def test_all_else_is_counted_and_not_shown(written: bytes, caplog: pytest.LogCaptureFixture) -> None:
    shown: list[LogLine] = []
    lines = ChildLines(shown.append)
    lines.feed(written)
    lines.report()
    assert not shown and "not shown: 1." in caplog.text and "secret" not in caplog.text
    os.close(lines.writer)


def test_a_line_without_an_end_is_not_kept() -> None:
    lines = ChildLines(lambda line: None)
    for _ in range(100):
        lines.feed(b"x" * MAX_LINE_BYTES)
    assert len(lines._rest) <= MAX_LINE_BYTES
    os.close(lines.writer)


def test_a_full_pipe_holds_no_child_up() -> None:
    lines = ChildLines(lambda line: None)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(lines.writer, encoded(GOOD))
    os.close(lines.writer)


CHILDREN = ("gateway", "sealed_api", "forkserver", "compute", "link", "engine", "models")
"""Packages whose code runs in processes that may write lines."""


def logged(folder: Path) -> set[str]:
    """Literals of log calls."""
    found = set()
    for path in (
        path for path in folder.rglob("*.py") if re.search(r"\blog\.", path.read_text().replace("_log", "log"))
    ):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                of_log = isinstance(node.func.value, ast.Name) and node.func.value.id in ("log", "_log")
                first = node.args[0]
                if of_log and isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
    return found


def test_the_list_has_what_children_log_and_nothing_that_no_code_logs() -> None:
    theirs = {template for package in CHILDREN for template in logged(SOURCE / package)}
    assert len(theirs) > 6 and theirs <= TEMPLATES
    written_apart = {LIBRARY, NO_LITERAL, "A file that is not of the release would have run."}
    assert logged(SOURCE) | logged(SOURCE.parent / "cloister_mpc") | written_apart >= TEMPLATES
    sources = "".join(path.read_text() for package in ("compute", "link") for path in (SOURCE / package).rglob("*.py"))
    assert all(sentence in sources for sentence in SENTENCES)
    assert {"ValueError", "CloisterError", "setup_error"} <= NAMES and "secret" not in NAMES


def test_every_entry_has_a_listed_name() -> None:
    files = (path.read_text() for path in SOURCE.rglob("*.py"))
    roles = {found for text in files for found in re.findall(r'^ROLE = "(.+?)"', text, re.MULTILINE)}
    assert len(roles) > 8 and roles <= ROLES


SERVER = """
import asyncio, os, sys, msgspec
from cloister.messages.cli_controller import StartController
from cloister.process import child, entry

if len(sys.argv) > 2:
    print("my secret"), print("my secret", file=sys.stderr)
    from cloister.process.hardening import begin_child, log
    begin_child("gateway")
    log.error("Unexpected %s.", "my secret")
    raise ValueError("my secret")

note = os.memfd_create("settings")
os.write(note, msgspec.json.encode(StartController("{}", "m", "/m", 0.0, log_format=sys.argv[1])))
os.lseek(note, 0, os.SEEK_SET)
sys.argv[1] = str(note)
child.interpreter.python = lambda module, *more: [sys.executable, module, *more, "child"]

async def serve(start, console, stopped):
    made, ours = child.start_module(__file__)
    await made.ends()
    await asyncio.sleep(1.5)
    print("up", flush=True)
    await stopped

entry.run_server("controller", serve)
"""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_a_child_prints_does_not_leave_its_parent(tmp_path: Path, log_format: str) -> None:
    (program := tmp_path / "program.py").write_text(SERVER)
    command, pipe = [sys.executable, str(program), log_format], subprocess.PIPE
    given = {**os.environ, **WIPE_FREED_MEMORY}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=given) as process:
        assert process.stdout and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        said, told = process.communicate()
    assert "secret" not in said + told and "Traceback" not in told
    assert "Unexpected %s." in told and "Ended by ValueError" in told and "not shown: 2." in told
    lines = told.splitlines()
    if log_format == "json":
        found = [msgspec.json.decode(line) for line in lines]
        assert [one["process"] for one in found] == ["gateway", "gateway", "controller"]
    else:
        assert lines[-1] == "Stopped." and " ERROR   gateway: " in lines[0] and " WARNING controller: " in told
