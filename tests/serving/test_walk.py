"""One request's walk, traced through all processes of a node, is the one that docs/architecture.md tells."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI

from cloister.config import DEVELOPMENT_KEY
from cloister.models.source import ModelFolder
from tests.doc_blocks import helpers_of, walk_of
from tests.served import Server

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cloister"
DOCUMENT = ROOT / "docs" / "architecture.md"
IDLE_S = 6.0
"""Longer than the silence after which a process is pinged: what runs without a request is no part of a walk."""
LEVELS = ("partitioned", "shared", "obfuscated")


@dataclass(frozen=True)
class Walks:
    """Files that an idle node runs, and by level those that ran while it answered one warm request."""

    idle: set[str]
    ran: dict[str, set[str]]


class Notes:
    """The mapping that tracer/sitecustomize.py writes to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = [str(file.relative_to(SOURCE)) for file in sorted(SOURCE.rglob("*.py"))]
        path.write_bytes(bytes(1 + len(self._files)))

    def start(self) -> None:
        with self._path.open("r+b") as file:
            file.write(b"\1" + bytes(len(self._files)))

    def stop(self) -> set[str]:
        with self._path.open("r+b") as file:
            seen = file.read()
            file.seek(0)
            file.write(b"\0")
        return {
            name for name, ran in zip(self._files, seen[1:], strict=True) if ran and not name.endswith("__init__.py")
        }


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder) -> Iterator[Walks]:
    folder = tmp_path_factory.mktemp("walk")
    notes = Notes(folder / "notes")
    set_here = {
        "PYTHONPATH": str(Path(__file__).parent / "tracer"),
        "CLOISTER_WALK_NOTES": str(folder / "notes"),
        "CLOISTER_WALK_SOURCE": str(SOURCE),
    }
    before = {name: os.environ.get(name) for name in set_here}
    os.environ.update(set_here)
    try:
        server = Server(folder / "log", "--detector", "--model", str(short_folder.path))
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        client = OpenAI(base_url=f"{server.url()}/v1", api_key=DEVELOPMENT_KEY)
        model = client.models.list().data[0].id
        found: dict[str, set[str]] = {}
        for level in LEVELS:
            ask(client, model, level)  # the first one starts what starts with the first request
        time.sleep(1.0)
        notes.start()
        time.sleep(IDLE_S)
        idle = notes.stop()
        for level in LEVELS:
            ran = [traced(notes, client, model, level) for _ in range(2)]
            found[level] = ran[0] & ran[1]  # beside one of them the node may make a spare vault
        yield Walks(idle, found)
    finally:
        server.stop()


def traced(notes: Notes, client: OpenAI, model: str, level: str) -> set[str]:
    notes.start()
    ask(client, model, level)
    return notes.stop()


def ask(client: OpenAI, model: str, level: str) -> None:
    """In a kept session, so that a vault is there when the second request comes."""
    body = {"protection": level} | ({} if level == "shared" else {"session": f"walk-{level}"})
    text = "My name is <redacted>Ann</redacted>." if level == "obfuscated" else "My name is Ann."
    options = {"obfuscation": {"fakes": 1}} if level == "obfuscated" else {}
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_tokens=4,
        temperature=0,
        stream=True,
        extra_body=body | options,
    )
    assert list(stream)


@pytest.mark.parametrize("level", LEVELS)
def test_the_page_names_the_files_that_a_request_runs(walks: Walks, level: str) -> None:
    named = walk_of(DOCUMENT, level)
    idle, unnamed = named - walks.ran[level], walks.ran[level] - walks.idle - named - helpers_of(DOCUMENT)
    assert not idle, f"the page names files that did not run: {sorted(idle)}"
    assert not unnamed, f"files ran that the page does not name: {sorted(unnamed)}"
