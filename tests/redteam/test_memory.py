"""The search through processes finds what is there: in every form, in every kind of memory, across every border.

A process that has secrets at known places has them nowhere else (tests/redteam/planted.py): the search says those and
no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from cloister.audit.memory import Search, memory_files_of, start_of, stopped
from cloister.audit.needles import Needles, Secret
from tests.redteam import planted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may read another process's memory")

SECRET = Secret("qhwzkvjxbnpmrtyldgfscoaeiuqvzjkw", (5321, 877, 12004, 300, 46001, 2210, 9120, 777))
LISTED, SHARED = (31007, 402, 18233, 7019), (40111, 903, 2718, 31415)
UNMAPPED = b"what is in a memory file that nobody maps"
CUT = b"begins here, and goes on over there"
IN_PLACES = {place: f"what is kept in: {place}.".encode() for place in planted.PLACES}
LONELY = {"memory file", "memory file, own page"}
"""Without a page beside them that a child could have as its own, and that would be searched with its neighbours."""


def masked(secret: bytes) -> str:
    return bytes(byte ^ planted.MASK for byte in secret).hex()


def masked_ints(tokens: tuple[int, ...]) -> list[int]:
    return [token ^ planted.TOKEN_MASK for token in tokens]


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    """Where the secrets are; also as which process."""
    secrets = [(place, place, masked(secret)) for place, secret in IN_PLACES.items()]
    secrets += [(form, "heap", masked(needle)) for form, needle in SECRET.forms.items()]
    others = {"unmapped": masked(UNMAPPED), "half": masked(CUT[:16]), "rest": masked(CUT[16:])}
    given = {"secrets": secrets, "list": masked_ints(LISTED), "ints": masked_ints(SHARED), **others}
    with subprocess.Popen([sys.executable, planted.__file__, json.dumps(given)], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        yield {**json.loads(process.stdout.readline()), "pid": process.pid}
        process.communicate()


def test_a_secret_is_looked_for_in_every_width_order_and_packing() -> None:
    """None may get lost: those that are planted are those that are looked for."""
    halves = {f"{width}, {half} half" for width in ("text", "UTF-16", "UTF-32") for half in ("first", "last")}
    numbers = ("4 bytes each", "8 bytes each", "floats of 4 bytes", "floats of 8 bytes")
    tokens = {f"tokens, {how}" for how in ("packed", "as text", *numbers)}
    assert set(SECRET.forms) == {*halves, "characters, 8 bytes each", "text, backwards", *tokens}


def find(told: dict[str, Any], search: Search) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """What the process has, and what its child has beyond that."""
    with stopped((told["pid"], told["child"])):
        return tuple(sorted((name, at) for name, at, _ in search.find(told[who])) for who in ("pid", "child"))  # type: ignore[return-value]


def test_every_kind_of_memory_is_searched_across_all_borders(told: dict[str, Any]) -> None:
    here, there = find(told, Search(IN_PLACES))
    assert here == sorted((place, told["addresses"][place]) for place in IN_PLACES)
    assert not LONELY & {place for place, _ in there}, "what two share is searched in the first"


def test_every_form_is_found(told: dict[str, Any]) -> None:
    here, _ = find(told, Search.of(SECRET))
    assert here == sorted((form, told["addresses"][form]) for form in SECRET.forms)
    for form, needle in SECRET.forms.items():
        assert SECRET.found_in(b"x" * 9000 + needle) == [form]
    assert SECRET.found_in(b"x" * 9000) == SECRET.found_in(b"") == []


def test_tokens_are_found_as_a_list_of_objects(told: dict[str, Any]) -> None:
    [(form, _)], _ = find(told, Search({"none": b"nobody has this"}, LISTED))
    assert form == "tokens, as objects"


def test_a_list_is_found_whose_objects_are_in_memory_that_was_searched(told: dict[str, Any]) -> None:
    here, [(form, _)] = find(told, Search({"none": b"nobody has this"}, SHARED))
    assert form == "tokens, as objects" and not here


def test_what_begins_in_memory_that_was_searched_is_found(told: dict[str, Any]) -> None:
    assert find(told, Search({"both": CUT})) == ([], [("both", told["addresses"]["half"])])


def test_memory_files_are_read_and_what_a_process_was_told(told: dict[str, Any]) -> None:
    assert find(told, Search({"unmapped": UNMAPPED})) == ([], []), "it has no pages in a process"
    assert any(UNMAPPED in data for data in memory_files_of(told["pid"]).values())
    assert masked(CUT[:16]).encode() in start_of(told["pid"])


def test_the_stack_the_heap_and_files_are_what_they_are_called(told: dict[str, Any]) -> None:
    with stopped((told["pid"],)):
        names = {name: where for name, _, where in Search(IN_PLACES).find(told["pid"])}
    assert names["heap"] == "[heap]" and names["memory file"].startswith("/memfd:cloister-planted")
    assert Path(names["file"]).is_absolute() and "anonymous" in names["private"]


def test_bytes_that_overlap_are_all_found() -> None:
    found = Needles({"a": b"abab", "b": b"bab", "zeros": b"\0\0b"}).places(b"ababab\0\0b")
    assert found == [(0, 4, "a"), (1, 4, "b"), (2, 6, "a"), (3, 6, "b"), (6, 9, "zeros")]
