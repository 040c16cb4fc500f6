"""What tests of the client share: a memory of logs that is the test's own, and a node without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.fake_node import FakeNode, release_in, running


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the client's memory."""
    folder = tmp_path / "state"
    monkeypatch.setenv("CLOISTER_STATE", str(folder))
    return folder


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with running(FakeNode(release_in(tmp_path / "log"))) as node:
        yield node
