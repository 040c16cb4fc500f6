"""Of a sequence that has ended no token id is left in a tensor, in whichever way it was computed and sampled.

torch's wheels for ARM do not overwrite a tensor's memory when it is freed, those for x86 do. Here nobody does
(tests/redteam/unwiped.py), so that this is red on both where we leave it to the allocator.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from cloister.audit.memory import Search, stopped
from cloister.process.hardening import WIPE_FREED_MEMORY
from tests.redteam import ended, unwiped

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FORMS = {"int64": "q", "int32": "i", "float64": "d", "float32": "f"}


@pytest.fixture(scope="module")
def secrets() -> dict[str, list[int]]:
    drawn = random.Random(5)
    names = (*ended.SCENARIOS, ended.KEPT)
    return {name: drawn.sample(range(300, ended.VOCABULARY), ended.SECRET) for name in names}


@pytest.fixture(scope="module")
def found(secrets: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[tuple[str, str]]]:
    """Which secrets the process still has, and in which form."""
    masked = {name: [token ^ ended.MASK for token in tokens] for name, tokens in secrets.items()}
    given = unwiped.environment(tmp_path_factory.mktemp("unwiped"))
    given["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[2]}"
    needles = {
        f"{name}: {form}": struct.pack(f"<{len(tokens)}{letter}", *tokens).rstrip(b"\0")
        for name, tokens in secrets.items()
        for form, letter in FORMS.items()
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.redteam.ended", json.dumps(masked)],
        env={**os.environ, **WIPE_FREED_MEMORY, **given},
        stdin=PIPE,
        stdout=PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ended\n"
        try:
            with stopped((process.pid,)):
                places = Search(needles).find(process.pid)
        except PermissionError:
            pytest.skip("this user may not read the memory of a process it started (ptrace_scope)")
        finally:
            process.communicate()
    yield {tuple(name.split(": ")) for name, _, _ in places}  # type: ignore[misc]


def test_no_ended_sequence_leaves_its_tokens_in_a_tensor(found: set[tuple[str, str]]) -> None:
    assert sorted(each for each in found if each[0] != ended.KEPT) == []


def test_the_search_finds_a_freed_tensor(found: set[tuple[str, str]]) -> None:
    assert (ended.KEPT, "int64") in found
