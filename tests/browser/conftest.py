"""A real Chromium, and the servers it is pointed at.

Playwright's sync API keeps an event loop of its own in the thread that uses it, so the browser lives no longer than
one test module: asyncio tests before and after it find a thread without a loop.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import launched_chromium, opened_page
from tests.browser.stub_server import Stub, running_stub

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def artifacts() -> Path:
    folder = REPOSITORY / "artifacts" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched_chromium() as browser:
        yield browser


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub() as stub:
        yield stub


@pytest.fixture
def page_server(stub: Stub) -> str:
    """The base URL of the server whose page the tests of this folder open."""
    return stub.url


@pytest.fixture
def page(browser: Browser, page_server: str) -> Iterator[Page]:
    """The page, opened and ready; every error of its script or of its security policy fails the test."""
    with opened_page(browser, page_server) as page:
        yield page


@pytest.fixture(scope="module")
def real_server() -> Iterator[str]:
    """`cloister serve` as a user starts it, with the default model; the base URL of its page and API."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from cloister.cli import app; app()", "serve", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(server, url)
        yield url
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGINT)
        try:
            server.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate()


def wait_until_healthy(server: subprocess.Popen[bytes], url: str, patience_s: float = 240) -> None:
    """The first start converts the model, hence the patience."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if server.poll() is not None:
            assert server.stdout is not None
            pytest.fail(f"cloister serve ended at once:\n{server.stdout.read().decode()}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.2)
    pytest.fail("cloister serve did not become healthy in time")
