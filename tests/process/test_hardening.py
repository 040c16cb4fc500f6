"""Freed memory is overwritten, and a process in which it is not does not serve."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cloister.process.hardening import WIPE_FREED_MEMORY

CHECK = "from cloister.process.hardening import check_freed_memory; check_freed_memory(); print('overwritten')"


def run(code: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    cleared = {name: value for name, value in os.environ.items() if name not in WIPE_FREED_MEMORY}
    return subprocess.run([sys.executable, "-c", code], env={**cleared, **variables}, capture_output=True, text=True)


def test_what_our_processes_free_is_overwritten() -> None:
    assert run(CHECK, WIPE_FREED_MEMORY).stdout == "overwritten\n"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {**WIPE_FREED_MEMORY, "PYTHONMALLOC": "pymalloc"},
        {**WIPE_FREED_MEMORY, "GLIBC_TUNABLES": "glibc.malloc.perturb=165"},
        {**WIPE_FREED_MEMORY, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
    ],
    ids=("nothing", "Python's own allocator", "caches of threads", "no filling"),
)
def test_it_is_refused_where_it_is_not(variables: dict[str, str]) -> None:
    refused = run(CHECK, variables)
    assert refused.returncode and "Memory that is freed is not overwritten" in refused.stderr


SERVER = """
import os, sys
from cloister.process import entry, template
from cloister.messages.cli_controller import StartController
import msgspec
note = os.memfd_create("settings")
os.write(note, msgspec.json.encode(StartController("{}", "m", "/m", 0.0)))
os.lseek(note, 0, os.SEEK_SET)
sys.argv[1:] = [str(note)]
async def serve(start, console, stopped):
    print("serves", flush=True)
entry.run_server("test", serve)
"""


def test_a_server_does_not_begin_without_it() -> None:
    assert run(SERVER, WIPE_FREED_MEMORY).stdout == "serves\n"
    refused = run(SERVER, {})
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "LD_PRELOAD" in refused.stderr


TEMPLATE = """
import socket
from cloister.process.template import main
ours, theirs = socket.socketpair()
ours.close()
main(theirs, [])
print("forks", flush=True)
"""


def test_a_template_does_not_begin_without_it() -> None:
    assert run(TEMPLATE, WIPE_FREED_MEMORY).stdout == "forks\n"
    refused = run(TEMPLATE, {})
    assert refused.returncode and not refused.stdout
