"""The page against `cloister serve` with the default model: what a newcomer does first, at every level."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.chromium import opened_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing: make setup")
expect = sync_api.expect

pytestmark = pytest.mark.slow

QUESTION = "Explain in two sentences why the sky is blue."


def mark_public(page: Page) -> None:
    page.get_by_text("Marking what is public").click()
    page.get_by_label("My messages are public").check()


def greedy(page: Page, longest: int = 512) -> None:
    """What the model answers is then known, and long enough."""
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer, in tokens").fill(str(longest))
    page.keyboard.press("Escape")


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def panel_of(page: Page) -> Any:
    return page.get_by_role("complementary", name="What the provider sees")


def answered(page: Page, count: int) -> None:
    expect(page.locator('.answer[aria-busy="false"]')).to_have_count(count, timeout=120_000)
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.release
def test_a_newcomer_chats_looks_at_the_panel_and_stops(browser: Browser, real_server: str, artifacts: Path) -> None:
    with opened_page(browser, real_server, width=1440, height=900) as page:
        panel = panel_of(page)
        expect(page.get_by_role("radio", name="partitioned", exact=True)).to_be_checked()
        expect(panel.locator(".verdict")).to_have_text("The answer, not your words.")
        greedy(page)
        ask(page, QUESTION)
        # fed by the service: the answer's tokens, contributions by the hundred, and nothing of the question
        contributions = panel.locator(".traffic b").nth(1)
        expect(contributions).to_have_text(re.compile(r"[1-9],?\d\d"), timeout=60_000)
        expect(panel.locator(".received")).not_to_be_empty()
        expect(panel.locator("[data-role=prompt] .state")).to_contain_text("0 tokens received")
        answered(page, 1)
        assert "two sentences" not in (panel.text_content() or "")
        shown = panel.locator(".received").text_content() or ""
        whole = page.locator(".answer .prose").text_content() or ""
        assert shown.split()[:3] == whole.split()[:3], "what the service has is the answer itself"
        expect(page.locator("#status")).to_contain_text("tokens/s")
        expect(page.locator("#status")).to_contain_text("prompt ")
        page.screenshot(path=artifacts / "real-server.png")

        ask(page, "Write a long story about a lighthouse keeper.")
        expect(panel.locator(".received").nth(1)).not_to_be_empty(timeout=60_000)
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.locator(".answer .note").last).to_have_text("Stopped.")
        page.screenshot(path=artifacts / "real-server-stopped.png")


def test_marked_text_is_public_up_to_the_mark(browser: Browser, short_server: str) -> None:
    with opened_page(browser, short_server) as page:
        greedy(page, 60)
        mark_public(page)
        ask(page, "Write a long letter to my friend <confidential>Theodora</confidential> about the sea.")
        public = panel_of(page).locator(".public")
        expect(public).to_contain_text("a long letter to my friend", timeout=60_000)
        answered(page, 1)
        assert "Theodora" not in (public.text_content() or "") and "the sea" not in (public.text_content() or "")


@pytest.mark.release
def test_at_open_the_provider_sees_the_words(browser: Browser, real_server: str) -> None:
    with opened_page(browser, real_server) as page:
        page.get_by_role("radio", name="open", exact=True).check()
        greedy(page, 40)
        ask(page, QUESTION)
        expect(panel_of(page).locator("[data-role=user] pre")).to_have_text(QUESTION)
        expect(page.locator(".pieces span").nth(3)).to_be_attached(timeout=60_000)  # it streams: pieces, not one lump
        answered(page, 1)


@pytest.mark.parametrize(
    ("level", "seen"),
    [("open", ".pieces"), ("partitioned", ".received"), ("obfuscated", ".received")],
)
def test_what_the_provider_sees_ends_with_the_answers_last_words(
    browser: Browser, short_server: str, level: str, seen: str
) -> None:
    with opened_page(browser, short_server) as page:
        page.get_by_role("radio", name=level, exact=True).check()
        greedy(page, 24)
        ask(page, "Greet my friend <redacted>Emma</redacted>." if level == "obfuscated" else QUESTION)
        answered(page, 1)
        # The page draws Markdown; its button copies what the model said.
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy").click()
        whole = page.evaluate("navigator.clipboard.readText()")
        assert len(whole.split()) > 3
        shown = panel_of(page).locator(seen)
        expect(shown.filter(has_text=whole) if level == "obfuscated" else shown).to_have_text(whole)


def test_at_isolated_the_service_has_nothing(browser: Browser, short_server: str) -> None:
    with opened_page(browser, short_server) as page:
        page.get_by_role("radio", name="isolated", exact=True).check()
        greedy(page, 40)
        ask(page, QUESTION)
        answered(page, 1)
        expect(panel_of(page).locator("[data-role=answer] .state")).to_have_text("0 tokens received, 0 contributions")
        assert page.locator(".answer .prose").text_content()


@pytest.mark.release
def test_every_level_says_the_same(browser: Browser, real_server: str) -> None:
    said = []
    for level in ("open", "partitioned", "isolated"):
        with opened_page(browser, real_server) as page:
            page.get_by_role("radio", name=level, exact=True).check()
            greedy(page, 40)
            ask(page, QUESTION)
            answered(page, 1)
            said.append(page.locator(".answer .prose").text_content())
    assert said[0] and said[0] == said[1] == said[2]
