"""A real Chromium, and a page opened in it that fails the test for what a user would not see: script errors, breaches
of the security policy, and requests to other origins."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
UNWANTED = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup"),
    *("AimEnabled", "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades"),
    *("HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "NetworkTimeServiceQuerying"),
    *("OptimizationHints", "PaintHolding", "PreconnectToSearch", "ThirdPartyStoragePartitioning"),
)
"""Features of Chromium: what its address bar would show, which takes each page of ours as long as the page; and those
that Playwright leaves out, since the last list counts."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(UNWANTED)}",
)


PICTURES = Path(__file__).parents[2] / "artifacts" / "browser"
PATIENCE_MS = 120_000
"""The machine may be busy with other tests."""


@contextmanager
def launched_chromium() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing: make setup")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no chromium on PATH: install one (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def pictured(page: Page, state: str = "end") -> None:
    """A picture of this state of the page, named after the test, in artifacts/browser."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].partition(" ")[0]
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{re.sub(r'[^a-z0-9]+', '-', test.removeprefix('test_').lower()).strip('-')}-{state}.png"
    page.screenshot(path=path, animations="disabled")
    assert path.read_bytes().startswith(b"\x89PNG")


@contextmanager
def opened_page(browser: Browser, url: str, *, width: int = 1280, height: int = 800, **options: Any) -> Iterator[Page]:
    """The page once it knows what the server offers; `options` go to the browser's context (color_scheme="dark")."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    troubles: list[str] = []
    requested: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # Chromium itself reports every refused request as an error; the refusals here are on purpose
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            troubles.append(message.text)

    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", note)
        page.on("request", lambda request: requested.append(request.url))
        page.goto(url)
        page.locator("#model:not(:empty)").wait_for(state="attached")
        yield page
        pictured(page)
    finally:
        context.close()
    assert not troubles, troubles
    elsewhere = [each for each in requested if not each.startswith(f"{url}/")]
    assert requested and not elsewhere, f"the page asked other origins: {elsewhere}"
