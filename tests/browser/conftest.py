"""A real Chromium, and the servers it is pointed at.

Playwright's sync API keeps an event loop of its own in the thread that uses it, so the browser lives no longer than
one test module: asyncio tests before and after it find a thread without a loop.
"""

from __future__ import annotations

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
