"""What tests of the client share: a memory of logs that is the test's own, and a node without a model."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import httpcore2
import pytest

from cloister.transparency.proof import Release
from tests.client.fake_node import FakeNode, release_in, running


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the client's memory."""
    folder = tmp_path / "state"
    monkeypatch.setenv("CLOISTER_STATE", str(folder))
    return folder


@pytest.fixture(scope="session", autouse=True)
def authorities_read_once() -> Iterator[None]:
    """To read the machine's list of authorities takes a client a twentieth of a second, and each would do it anew."""
    plain = httpcore2.default_ssl_context
    usual = cache(plain)

    def context(**options: bool) -> ssl.SSLContext:
        named = any(name in os.environ for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        return plain(**options) if named else usual(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", context)
        yield


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A release in a log that nobody writes to."""
    return release_in(tmp_path_factory.mktemp("release") / "log")


@pytest.fixture
def node(tmp_path: Path, release: Release) -> Iterator[FakeNode]:
    """Its log is a copy of its own."""
    shutil.copytree(release.log_dir, tmp_path / "log")
    with running(FakeNode(replace(release, log_dir=tmp_path / "log"))) as node:
        yield node
