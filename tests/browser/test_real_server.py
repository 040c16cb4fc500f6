"""The page against `cloister serve` with the default model: what a newcomer does first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import opened_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing: make setup")
expect = sync_api.expect

pytestmark = pytest.mark.slow


def test_a_newcomer_chats_looks_at_the_panel_and_stops(browser: Browser, real_server: str, artifacts: Path) -> None:
    with opened_page(browser, real_server, width=1440, height=900) as page:
        message = page.get_by_label("Message", exact=True)
        panel = page.get_by_role("complementary", name="What the provider sees")
        expect(panel.locator(".verdict")).to_have_text("Everything.")

        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Temperature").fill("0")  # greedy: what the model answers is known, and long enough
        page.keyboard.press("Escape")

        message.fill("Explain in two sentences why the sky is blue.")
        page.keyboard.press("Enter")
        expect(panel.locator("[data-role=user] pre")).to_have_text("Explain in two sentences why the sky is blue.")
        expect(page.locator(".pieces span").nth(3)).to_be_attached(timeout=60_000)  # it streams: pieces, not one lump
        expect(page.locator('.answer[aria-busy="false"]')).to_have_count(1, timeout=120_000)
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.locator("#status")).to_contain_text("tokens/s")
        expect(page.locator("#status")).to_contain_text("prompt ")
        page.screenshot(path=artifacts / "real-server.png")

        message.fill("Write a long story about a lighthouse keeper.")
        page.keyboard.press("Enter")
        expect(page.locator(".exchange").nth(1).locator(".pieces span").nth(3)).to_be_attached(timeout=60_000)
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.locator(".answer .note").last).to_have_text("Stopped.")
        page.screenshot(path=artifacts / "real-server-stopped.png")
