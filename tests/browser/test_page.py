"""The page in a real Chromium, against a server that answers by a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloister.audit.page import shown
from tests.browser.chromium import opened_page, pictured
from tests.browser.stub_server import BROKEN, LEVELS, Gate, Stub

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing: make setup")
expect = sync_api.expect

RICH_ANSWER = """Air scatters **short** waves most, so:

1. the sky is *blue*,
2. sunsets are red.

```python
def scatter(nm):
    return nm ** -4
```

That is `Rayleigh` scattering."""


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def choose(page: Page, level: str) -> None:
    page.get_by_role("radio", name=level, exact=True).check()


def panel_of(page: Page) -> Any:
    return page.get_by_role("complementary", name="What the provider sees")


def answers(page: Page) -> Any:
    return page.locator(".answer .prose")


def finished(page: Page, count: int = 1) -> None:
    expect(page.locator('.answer[aria-busy="false"]')).to_have_count(count)


def test_an_answer_shows_as_it_streams(page: Page, stub: Stub) -> None:
    gate = Gate()
    stub.will_answer("Once", " upon", gate, " a time")
    ask(page, "Tell me a story")
    expect(answers(page)).to_have_text("Once upon")
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#status")).to_contain_text("about 2 tokens")
    pictured(page, "streaming")
    gate.open()
    expect(answers(page)).to_have_text("Once upon a time")
    finished(page)
    expect(page.locator("#status")).to_contain_text("3 tokens")
    expect(page.locator("#status")).to_contain_text("prompt 7")


def test_the_request_carries_level_key_settings_and_earlier_turns(page: Page, stub: Stub) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0.2")
    page.get_by_label("Longest answer, in tokens").fill("99")
    pictured(page, "settings")
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    stub.will_answer("One")
    stub.will_answer("Two")
    ask(page, "first")
    finished(page)
    ask(page, "second")
    finished(page, 2)
    body = stub.bodies[1]
    assert body["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "One"},
        {"role": "user", "content": "second"},
    ]
    assert (body["temperature"], body["max_tokens"], body["protection"]) == (0.2, 99, "partitioned")
    assert body["model"] == "stub-model" and body["stream"] and body["stream_options"] == {"include_usage": True}


def test_enter_sends_and_shift_enter_breaks_the_line(page: Page, stub: Stub) -> None:
    stub.will_answer("Yes")
    page.get_by_label("Message", exact=True).press_sequentially("two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    assert not stub.bodies
    page.keyboard.press("Enter")
    finished(page)
    assert stub.bodies[0]["messages"][0]["content"] == "two\nlines"
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


@pytest.mark.parametrize("how", ["Escape", "Stop"])
def test_stopping_closes_the_connection_and_keeps_what_came(page: Page, stub: Stub, how: str) -> None:
    stub.will_answer("Half", Gate(), " never")
    ask(page, "Count to a million")
    expect(answers(page)).to_have_text("Half")
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".answer .note")).to_have_text("Stopped.")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    assert stub.left.wait(10), "the server never saw the page leave"

    stub.will_answer("Done")
    ask(page, "go on")
    finished(page, 2)
    assert stub.bodies[1]["messages"][1] == {"role": "assistant", "content": "Half"}


def test_slash_focuses_the_message(page: Page) -> None:
    page.get_by_role("button", name="New chat").focus()
    page.keyboard.press("/")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Message", exact=True)).to_have_value("/")


def test_only_what_is_offered_can_be_chosen_and_partitioned_is(page: Page) -> None:
    radios = page.get_by_role("group", name="Protection").get_by_role("radio")
    expect(radios).to_have_count(len(LEVELS))
    for name, sees in ((level.name, level.provider_sees) for level in LEVELS.values()):
        radio = page.get_by_role("radio", name=name, exact=True)
        expect(radio).to_have_accessible_description(sees)
        expect(radio).to_be_checked(checked=name == "partitioned")
        expect(radio).to_be_enabled(enabled=name in ("open", "partitioned", "isolated"))


def test_a_server_with_less_offers_less(browser: Browser, stub: Stub) -> None:
    stub.enabled, stub.default = ("open",), None
    with opened_page(browser, stub.url) as page:
        expect(page.get_by_role("radio", name="open", exact=True)).to_be_checked()
        expect(page.get_by_role("radio", name="partitioned", exact=True)).to_be_disabled()
        expect(panel_of(page).locator(".verdict")).to_have_text("Everything.")


def test_a_degraded_seal_is_said_where_it_matters(browser: Browser, stub: Stub) -> None:
    stub.missing_layers = ("memory_lock", "landlock")
    with opened_page(browser, stub.url) as page:
        expect(page.locator("#degraded")).to_contain_text("it lacks memory_lock, landlock")
        assert page.evaluate(LOW_CONTRAST) == []
        choose(page, "open")
        expect(page.locator("#degraded")).to_be_hidden()


def test_the_panel_says_everything_and_shows_it_live(page: Page, stub: Stub) -> None:
    panel = panel_of(page)
    choose(page, "open")
    expect(panel.get_by_role("heading", name="What the provider sees", exact=True)).to_be_visible()
    expect(panel.locator(".verdict")).to_have_text("Everything.")
    gate = Gate()
    stub.will_answer("I", " will", gate, " not tell")
    ask(page, "My PIN is\n  4711  <b>")
    expect(panel.locator("[data-role=user] pre")).to_have_text("My PIN is\n  4711  <b>", use_inner_text=True)
    expect(panel.locator(".pieces span")).to_have_text(["I", " will"])
    assert panel.locator("[data-role=user] pre").text_content() == stub.bodies[0]["messages"][0]["content"]
    gate.open()
    expect(panel.locator(".pieces")).to_have_text("I will not tell")
    expect(panel.locator(".state")).to_have_text("complete")


def test_at_partitioned_the_panel_shows_the_services_own_account(page: Page, stub: Stub) -> None:
    panel = panel_of(page)
    expect(panel.locator(".verdict")).to_have_text("The answer, not your words.")
    expect(page.locator("#degraded")).to_be_hidden()
    expect(panel.locator(".reason")).to_contain_text("can be computed from those numbers")
    gate = Gate()
    stub.account("", "I", 30)
    stub.will_answer("I", gate, " will not tell")
    ask(page, "My PIN is 4711")
    expect(panel.locator("[data-role=prompt] .state")).to_have_text("0 tokens received")
    expect(panel.locator(".received")).to_have_text("I")
    expect(panel.locator(".traffic p").first).to_have_text("30 queries to the vault")
    expect(panel.locator(".layers i")).to_have_count(30)
    stub.account("", "I will", 1234)
    expect(panel.locator(".received")).to_have_text("I will")
    expect(panel.locator(".traffic p").nth(1)).to_have_text("1,234 contributions back, 138.2 kB")
    expect(panel.locator("[data-role=time] .state")).to_have_text("answering…")
    gate.open()
    finished(page)
    expect(panel.locator("[data-role=time] .state")).to_contain_text("complete after")
    assert "4711" not in (panel.text_content() or ""), "the page knows it, and does not say so in the provider's name"
    asked = stub.views_asked
    page.wait_for_timeout(700)
    assert stub.views_asked <= asked + 1, "an answer that is there is not asked about any more"


def test_a_service_that_lets_go_does_not_unsay_what_it_had(page: Page, stub: Stub) -> None:
    gate = Gate()
    stub.account("Dear ", "Hi", 60)
    stub.will_answer("Hi", gate)
    ask(page, "Dear <confidential>Ann</confidential>")
    panel = panel_of(page)
    expect(panel.locator(".public")).to_have_text("Dear ", use_inner_text=True)
    expect(panel.locator("[data-role=prompt] .state")).to_contain_text("5 tokens received, the public beginning")
    stub.account("", "", 0, known=False)
    gate.open()
    finished(page)
    page.wait_for_timeout(300)
    expect(panel.locator(".received")).to_have_text("Hi")
    assert "Ann" not in (panel.text_content() or "")


def test_at_isolated_the_panel_shows_nothing_but_time(page: Page, stub: Stub) -> None:
    choose(page, "isolated")
    panel = panel_of(page)
    expect(panel.locator(".verdict")).to_have_text("When you ask, and for how long.")
    stub.account("", "", 0, known=False)
    gate = Gate()
    stub.will_answer("Hush", gate)
    ask(page, "My PIN is 4711")
    expect(answers(page)).to_have_text("Hush")
    expect(panel.locator("[data-role=answer] .state")).to_have_text("0 tokens received, 0 contributions")
    gate.open()
    finished(page)
    expect(panel.locator("[data-role=time] .state")).to_contain_text("complete after")
    assert stub.views_asked and stub.bodies[0]["protection"] == "isolated"
    text = panel.text_content() or ""
    assert "4711" not in text and "Hush" not in text


def test_at_obfuscated_the_panel_shows_all_streams_and_not_which_is_real(browser: Browser, stub: Stub) -> None:
    stub.enabled = (*stub.enabled, "obfuscated")
    with opened_page(browser, stub.url) as page:
        choose(page, "obfuscated")
        panel = panel_of(page)
        expect(panel.locator(".verdict")).to_have_text("Several answers, one of them real.")
        expect(panel.locator(".reason")).to_contain_text("gateway picks your answer out, and knows which it is")
        page.get_by_text("Hiding secrets").click()
        page.get_by_label("Have my vault look for secrets, too").check()
        gate, said = Gate(), ("Hi Ann", "Hi Bob", "Hi Eve")
        stub.account("", "", 30)
        stub.view |= {"streams": [{"tokens": [1], "text": text[:2]} for text in said]}
        stub.will_answer("Hi", gate, " Ann")
        ask(page, "I am <redacted>Ann</redacted>.")
        streams = panel.locator(".streams .received")
        expect(streams).to_have_text(["Hi", "Hi", "Hi"])
        expect(panel.locator("[data-role=answers] .state")).to_have_text("3 answers; one of them is real")
        stub.view |= {"streams": [{"tokens": [1, 2], "text": text} for text in said]}
        gate.open()
        finished(page)
        expect(streams).to_have_text(list(said))
        expect(answers(page)).to_have_text("Hi Ann")
        classes = panel.locator(".streams").evaluate("of => [...of.children].map((each) => each.outerHTML.length)")
        assert len(set(classes)) == 1, "drawn alike"
        assert "redacted" not in (panel.locator("[data-role=prompts]").text_content() or "")
        assert (stub.bodies[0]["protection"], stub.bodies[0]["obfuscation"]) == ("obfuscated", {"auto_redact": True})
        assert stub.bodies[0]["session"], "substitutes live as long as it does"
        choose(page, "partitioned")
        stub.will_answer("Yes")
        ask(page, "And now?")
        finished(page, 2)
        assert "obfuscation" not in stub.bodies[1]


def test_at_shared_the_panel_says_what_others_may_find_and_why_not_the_rest(browser: Browser, stub: Stub) -> None:
    stub.enabled = (*stub.enabled, "shared")
    with opened_page(browser, stub.url) as page:
        choose(page, "shared")
        panel = panel_of(page)
        gate = Gate()
        stub.account("", "", 0)
        stub.will_answer("I", gate, " see")
        ask(page, "Sort a list. My card is 4111")
        part = panel.locator("[data-role=shared]")
        expect(part.locator(".state")).to_have_text("not read yet: all of it is private")
        blocks = [("Sort a list. ", "public", 2, None), ("My card is ", "private", 1, "financial")]
        blocks.append(("4111", "private", 1, "inherited"))
        named = [dict(zip(("text", "label", "tier", "category"), block, strict=True)) for block in blocks]
        stub.view |= {"found": 16, "found_shared": 16, "blocks": named}
        expect(part.locator(".may-share")).to_have_text(["Sort a list. "], use_inner_text=False)
        expect(part.locator(".held")).to_have_count(2)
        expect(part.locator(".held").first).to_have_attribute(
            "title", "private: it is about financial (a rule decided)"
        )
        expect(part.locator(".held").last).to_have_attribute("title", "private: it follows what is")
        expect(part.locator(".state")).to_contain_text("16 tokens were in the cache, 16 of them shared between users")
        gate.open()
        finished(page)
        expect(panel.locator("[data-role=answer] .state")).to_have_text("complete")


def test_at_mpc_the_page_says_how_far_it_is(browser: Browser, stub: Stub) -> None:
    stub.enabled = (*stub.enabled, "mpc")
    with opened_page(browser, stub.url) as page:
        choose(page, "mpc")
        stub.account("", "", 0, known=False)
        gate, later = Gate(), Gate()
        stub.will_answer(b": token 1, layer 7 of 30, about 4.2 s per token\n\n", gate, "Hush", later)
        ask(page, "My PIN is 4711")
        status = page.locator("#status")
        expect(status).to_have_text("Computing token 1, layer 7 of 30, about 4.2 s per token")
        gate.open()
        expect(answers(page)).to_have_text("Hush")
        later.open()
        finished(page)
        expect(status).to_contain_text("1 token ")
        assert stub.bodies[0]["protection"] == "mpc" and stub.bodies[0]["max_tokens"] <= 64
        assert "4711" not in (panel_of(page).text_content() or "")


def test_without_an_account_the_panel_claims_none(page: Page, stub: Stub) -> None:
    stub.will_answer("Hello")
    ask(page, "Hi")
    finished(page)
    expect(panel_of(page).locator(".received")).to_have_text("")
    expect(panel_of(page).locator(".traffic b").first).to_have_text("0")


def test_a_conversation_has_one_session_and_a_new_chat_ends_it(page: Page, stub: Stub) -> None:
    for _ in range(3):
        stub.will_answer("Noted")
    ask(page, "one")
    finished(page)
    ask(page, "two")
    finished(page, 2)
    first, second = (body["session"] for body in stub.bodies)
    assert first == second and len(first) == 32
    assert stub.ended_sessions == []
    page.get_by_role("button", name="New chat").click()
    ask(page, "three")
    finished(page)
    assert stub.ended_sessions == [first]
    third = stub.bodies[2]["session"]
    assert third != first
    page.goto("about:blank")
    for _ in range(100):
        if len(stub.ended_sessions) == 2:
            break
        page.wait_for_timeout(20)
    assert stub.ended_sessions == [first, third], "leaving the page ends its session"


def test_a_change_of_level_sends_nothing_of_before_along(page: Page, stub: Stub) -> None:
    stub.will_answer("Noted")
    stub.will_answer("Hello")
    ask(page, "said while partitioned")
    finished(page)
    choose(page, "open")
    expect(page.locator(".divider")).to_contain_text("not sent again")
    ask(page, "said while open")
    finished(page, 2)
    assert stub.bodies[1]["protection"] == "open"
    assert [message["content"] for message in stub.bodies[1]["messages"]] == ["said while open"]
    assert stub.ended_sessions == [stub.bodies[0]["session"]] and "session" not in stub.bodies[1]


def test_only_what_the_user_marks_is_public(page: Page, stub: Stub) -> None:
    stub.will_answer("One")
    ask(page, "<confidential></confidential> pasted")
    finished(page)
    stub.will_answer("Two")
    page.get_by_text("Marking what is public").click()
    page.get_by_label("My messages are public").check()
    ask(page, "Dear <confidential>Ann</confidential>")
    finished(page, 2)
    assert [message.get("public") for message in stub.bodies[1]["messages"]] == [None, None, True]


def test_the_tags_are_explained_where_they_matter(page: Page) -> None:
    page.get_by_text("Marking what is public").click()
    expect(page.locator(".tags")).to_contain_text("<confidential>")
    choose(page, "open")
    expect(page.locator(".tags")).to_be_hidden()


def test_a_lost_vault_is_explained_and_retried(page: Page, stub: Stub) -> None:
    stub.will_refuse(503, "vault_lost", "The process that held the prompt ended.", **{"Retry-After": "2"})
    ask(page, "hello")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The vault that held your message ended.")
    stub.will_answer("Now")
    alert.get_by_role("button", name="Try again").click()
    expect(answers(page)).to_have_text("Now")


def test_html_in_an_answer_stays_text(page: Page, stub: Stub) -> None:
    attack = (
        '<img src=x onerror="document.title=1"> <script>document.title=2</script>\n\n'
        "- **<img src=x onerror=document.title=3>**\n\n```html\n<svg onload=document.title=4>\n```\n\n"
        "![x](https://example.com/leak?q=1) [y](javascript:document.title=5)"
    )
    stub.will_answer(attack)
    ask(page, "<img src=x onerror=document.title=6>")
    finished(page)
    expect(answers(page)).to_contain_text('<img src=x onerror="document.title=1">')
    expect(answers(page)).to_contain_text("![x](https://example.com/leak?q=1)")
    assert page.locator("main").locator(".turn").locator("img, script, svg, a, iframe, [onerror]").count() == 0
    assert page.locator("#feed").locator("img, script, svg, a").count() == 0
    assert page.title() == "Cloister"


def test_light_markdown_becomes_elements_and_copy_gives_the_source(browser: Browser, stub: Stub) -> None:
    with opened_page(browser, stub.url) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        # cut where it hurts: inside marks, fences and list items
        stub.will_answer(*(RICH_ANSWER[at : at + 3] for at in range(0, len(RICH_ANSWER), 3)))
        ask(page, "Why?")
        finished(page)
        expect(answers(page).locator("strong")).to_have_text("short")
        expect(answers(page).locator("ol > li")).to_have_text(["the sky is blue,", "sunsets are red."])
        assert answers(page).locator("pre code").text_content() == "def scatter(nm):\n    return nm ** -4"
        expect(answers(page).locator("p code")).to_have_text("Rayleigh")
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == RICH_ANSWER


def test_characters_and_events_cut_by_the_network_are_joined(page: Page, stub: Stub) -> None:
    event = 'data: {"choices":[{"index":0,"delta":{"content":"prêt 🌿"}}]}\r\n\r\n'.encode()
    cut = event.index("🌿".encode()) + 2
    gate = Gate()
    stub.will_answer("Je suis ", event[:cut], gate, event[cut:])
    ask(page, "Ça va ?")
    expect(answers(page)).to_have_text("Je suis")
    gate.open()
    expect(answers(page)).to_have_text("Je suis prêt 🌿")


def test_a_bad_key_is_explained_and_can_be_mended(page: Page, stub: Stub) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Escape")
    ask(page, "hello")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("This API key is not known here.")
    expect(alert).to_contain_text("Enter a key this server knows")
    expect(page.get_by_label("Message", exact=True)).to_have_value("hello")
    alert.get_by_role("button", name="Open settings").click()
    page.get_by_label("API key").fill("stub-key")
    page.keyboard.press("Enter")
    stub.will_answer("Welcome")
    ask(page, "hello again")
    expect(alert).to_be_hidden()
    expect(answers(page).last).to_have_text("Welcome")
    assert [message["content"] for message in stub.bodies[1]["messages"]] == ["hello again"]


def test_a_server_with_real_keys_asks_for_one(browser: Browser, stub: Stub) -> None:
    stub.development_key = None
    with opened_page(browser, stub.url) as page:
        key = page.get_by_label("API key")
        expect(key).to_be_focused()
        expect(page.get_by_text("This server needs an API key.")).to_be_visible()
        key.fill("stub-key")
        page.keyboard.press("Enter")
        stub.will_answer("Welcome")
        ask(page, "hello")
        expect(answers(page)).to_have_text("Welcome")


def test_a_refused_message_is_the_writers_again(page: Page, stub: Stub) -> None:
    stub.will_refuse(400, "context_length_exceeded", "The prompt is too long.")
    ask(page, "a long story")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The prompt is too long.")
    expect(page.get_by_label("Message", exact=True)).to_have_value("a long story")
    expect(page.locator(".turn")).to_have_count(0)
    for status, code in ((429, "insufficient_quota"), (400, "invalid_request_error")):
        stub.will_refuse(status, code, f"No {status}.")
        page.keyboard.press("Enter")
        expect(alert).to_contain_text(f"No {status}.")
        expect(alert).to_contain_text("Your message is in the box below")
        expect(alert.get_by_role("button", name="Open settings")).to_be_hidden()
    stub.will_answer("Short")
    ask(page, "a story")
    expect(answers(page)).to_have_text("Short")
    assert [message["content"] for message in stub.bodies[-1]["messages"]] == ["a story"]


@pytest.mark.parametrize("height", [820, 1180])
def test_the_ladder_fits_a_small_screen(browser: Browser, stub: Stub, height: int) -> None:
    stub.enabled = tuple(LEVELS)
    with opened_page(browser, stub.url, width=1280, height=height) as page:
        assert page.evaluate("(e => e.scrollHeight <= e.clientHeight)(document.getElementById('levels'))")
        assert not [text for text in page.locator("#level-list p:not(.hidden)").all_inner_texts() if "`" in text]


def test_on_a_phone_the_model_has_its_name_and_a_thumb_hits(browser: Browser, stub: Stub) -> None:
    with opened_page(browser, stub.url, width=390, height=844) as page:
        expect(page.get_by_text("stub-model")).to_be_visible()
        sizes = page.evaluate(
            "[...document.querySelectorAll('button')].filter(e => e.checkVisibility())"
            ".map(e => [e.textContent.trim(), e.getBoundingClientRect().height])"
        )
        assert sizes and not [(name, height) for name, height in sizes if height < 44]


def test_a_table_becomes_one(page: Page, stub: Stub) -> None:
    source = "Sizes:\n\n| a | b |\n|---|:-:|\n| 1 | **2** |\n| x \\| y |\n\nEnd | here"
    stub.will_answer(*(source[at : at + 3] for at in range(0, len(source), 3)))
    ask(page, "a table")
    finished(page)
    expect(answers(page).locator("th")).to_have_text(["a", "b"])
    expect(answers(page).locator("td")).to_have_text(["1", "2", "x | y", ""])
    expect(answers(page).locator("td strong")).to_have_text("2")
    expect(answers(page).locator("p").last).to_have_text("End | here")


def test_json_calls_and_reasoning_show_as_what_they_are(page: Page, stub: Stub) -> None:
    def delta(**fields: object) -> bytes:
        return b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode()

    def call(**function: str) -> bytes:
        return delta(tool_calls=[{"index": 0, "id": "call_1", "function": function}])

    stub.will_answer('{"city": ', '"Lyon", "html": "<b>"}')
    ask(page, "as JSON")
    finished(page)
    shown_code = answers(page).locator("pre code")
    assert shown_code.text_content() == '{\n  "city": "Lyon",\n  "html": "<b>"\n}'
    stub.will_answer(
        delta(reasoning_content="It is <i>late"),
        delta(reasoning_content="</i>."),
        call(name="weather", arguments=""),
        call(arguments='{"city": '),
        call(arguments='"Lyon"}'),
    )
    ask(page, "call")
    finished(page, 2)
    last = page.locator(".answer").last
    expect(last.locator("figcaption")).to_have_text("Calls weather")
    assert last.locator("pre code").text_content() == '{\n  "city": "Lyon"\n}'
    last.get_by_text("Reasoning").click()
    expect(last.locator(".thought p")).to_have_text("It is <i>late</i>.")
    expect(page.locator("#banner")).to_be_hidden()


def test_a_full_queue_says_how_long_and_retries(page: Page, stub: Stub) -> None:
    stub.will_refuse(429, "queue_full", "Too many requests wait.", **{"Retry-After": "3"})
    ask(page, "hello")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Too many requests wait.")
    expect(alert).to_contain_text("about 3 s")
    stub.will_answer("Now")
    alert.get_by_role("button", name="Try again").click()
    expect(answers(page)).to_have_text("Now")
    expect(page.locator(".question")).to_have_count(1)
    assert stub.bodies[0]["messages"] == stub.bodies[1]["messages"]


def test_a_broken_stream_is_not_taken_for_an_answer(page: Page, stub: Stub) -> None:
    stub.will_answer("Half a", BROKEN)
    ask(page, "hello")
    expect(page.get_by_role("alert")).to_contain_text("broke off")
    expect(page.locator(".answer .note")).to_have_text("Broken off.")


def test_an_error_inside_the_stream_is_shown(page: Page, stub: Stub) -> None:
    stub.will_answer("Half", b'data: {"error": {"message": "The service is gone.", "code": "service_unavailable"}}\n\n')
    ask(page, "hello")
    expect(page.get_by_role("alert")).to_contain_text("The service is gone.")


def test_new_chat_forgets_and_nothing_is_stored(page: Page, stub: Stub) -> None:
    stub.will_answer("Noted", Gate())
    ask(page, "remember me")
    expect(answers(page)).to_have_text("Noted")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#feed")).to_be_empty()
    assert stub.left.wait(10), "a new chat must stop the answer that was coming"
    stub.will_answer("Hello")
    ask(page, "who am I?")
    finished(page)
    assert [message["content"] for message in stub.bodies[1]["messages"]] == ["who am I?"]
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def test_the_theme_follows_the_system_until_toggled(browser: Browser, stub: Stub) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened_page(browser, stub.url, color_scheme="dark") as page:
        dark = page.evaluate(background)
        page.get_by_role("button", name="Switch to light colours").click()
        light = page.evaluate(background)
        assert light != dark
        page.get_by_role("button", name="Switch to dark colours").click()
        assert page.evaluate(background) == dark
    with opened_page(browser, stub.url, color_scheme="light") as page:
        assert page.evaluate(background) == light


@pytest.mark.parametrize("width", [320, 360])
def test_on_a_narrow_screen_the_panel_lies_under_a_toggle(browser: Browser, stub: Stub, width: int) -> None:
    with opened_page(browser, stub.url, width=width, height=640) as page:
        stub.will_answer("```\n" + "wide " * 60 + "\n```\n" + "long" * 60)
        ask(page, "unbreakable" * 20)
        finished(page)
        panel = page.locator("aside")
        toggle = page.get_by_role("button", name="What the provider sees")
        expect(panel).to_be_hidden()
        toggle.click()
        expect(panel).to_be_visible()
        expect(toggle).to_have_attribute("aria-expanded", "true")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.get_by_role("button", name="Protection: partitioned").click()
        expect(panel).to_be_hidden()
        expect(page.get_by_role("radio", name="open")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("radio", name="open")).to_be_hidden()
        expect(page.get_by_role("button", name="Protection: partitioned")).to_be_focused()
        assert page.evaluate("document.documentElement.scrollWidth") == width


CONTROLS = {"button", "textbox", "radio", "spinbutton", "checkbox", "link", "DisclosureTriangle", "dialog", "region"}


def unnamed_controls(page: Page) -> list[Any]:
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    nodes = [node for node in tree["nodes"] if not node["ignored"] and node["role"]["value"] in CONTROLS]
    assert len(nodes) >= 4
    return [node for node in nodes if not node.get("name", {}).get("value")]


def test_every_control_has_a_name_and_landmarks_are_there(page: Page, stub: Stub) -> None:
    stub.will_answer("Hello")
    ask(page, "Hi")
    finished(page)
    assert unnamed_controls(page) == []
    for role in ("banner", "main", "complementary"):
        expect(page.get_by_role(role)).to_have_count(1)
    expect(page.get_by_role("log")).to_have_attribute("aria-live", "polite")
    page.get_by_role("button", name="Settings").click()
    assert unnamed_controls(page) == []


def matrix(page: Page) -> dict[str, tuple[str, str]]:
    expect(page.locator("#audit-rows tr").first).to_be_visible()  # they come with a request
    rows = [each.inner_text().split("\t") for each in page.locator("#audit-rows tr").all()]
    return {name: (outcome, found) for name, _, outcome, found in rows}


def test_the_matrix_shows_what_the_page_tried_and_claims_no_more(page: Page, stub: Stub) -> None:
    page.get_by_role("button", name="Audit").click()
    assert {outcome for outcome, _ in matrix(page).values()} == {"NOT TRIED"}
    page.get_by_role("button", name="Try what a browser can").click()
    expect(page.locator("#audit-counts")).to_contain_text("PASS")
    found = matrix(page)
    assert {found[row["name"]][0] for row in shown() if row["tries"]} == {"PASS", "OFF"}
    assert found["nothing is kept"][0] == "NOT TRIED" and found["tensor parallelism"][0] == "OFF"
    assert page.evaluate(LOW_CONTRAST) == []


def test_the_matrix_shows_a_flaw(page: Page, stub: Stub) -> None:
    stub.flaws = {"nice", "/flush_cache"}
    page.get_by_role("button", name="Audit").click()
    page.get_by_role("button", name="Try what a browser can").click()
    expect(page.locator("#audit-counts")).to_contain_text("2 FAIL")
    found = matrix(page)
    assert found["priority scheduling"][0] == "FAIL"
    assert found["no interface that widens access"] == ("FAIL", "POST /flush_cache answered 200.")


def test_the_matrix_shows_a_report_and_nothing_else(page: Page, tmp_path: Path) -> None:
    page.get_by_role("button", name="Audit").click()
    row = {"name": "<b>paging</b>", "endangers": "S", "outcome": "FAIL", "found": "words"}
    (tmp_path / "report.json").write_text(json.dumps({"rows": [row, {**row, "outcome": "perfect"}]}))
    page.locator("#audit-report").set_input_files(tmp_path / "report.json")
    expect(page.locator("#audit-counts")).to_have_text("1 FAIL")
    assert matrix(page) == {"<b>paging</b>": ("FAIL", "words")}
    (tmp_path / "other.json").write_text("[]")
    page.locator("#audit-report").set_input_files(tmp_path / "other.json")
    expect(page.locator("#audit-counts")).to_contain_text("no report")


FOCUS_SHOWS = """() => {
  const shows = ({ outlineStyle, boxShadow }) => outlineStyle !== "none" || boxShadow !== "none";
  const focused = document.activeElement;
  for (let e = focused; e && e !== document.body; e = e.parentElement) if (shows(getComputedStyle(e))) return true;
  return focused === document.body || focused.outerHTML; }"""


def test_every_stop_of_the_tab_key_shows_where_it_is(page: Page, stub: Stub) -> None:
    stub.will_answer("Hello")
    ask(page, "Hi")
    finished(page)
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUS_SHOWS) is True


# Contrast as WCAG 2.2 (1.4.3) defines it, for every text on the page over the first opaque ground behind it.
LOW_CONTRAST = """() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
                             return [...paint.getImageData(0, 0, 1, 1).data]; };
  const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const ground = (node) => { for (let e = node; e; e = e.parentElement) {
    const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = walker.nextNode());) {
    const element = text.parentElement;
    if (!text.textContent.trim() || !element.checkVisibility()) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) low.push([text.textContent, ratio]);
  }
  return low; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_and_pictures(browser: Browser, stub: Stub, artifacts: Path, scheme: Any) -> None:
    with opened_page(browser, stub.url, color_scheme=scheme, width=1440, height=900) as page:
        assert page.evaluate(LOW_CONTRAST) == []
        stub.will_answer(*RICH_ANSWER.split(" ")[0:1], *(" " + word for word in RICH_ANSWER.split(" ")[1:]))
        stub.account("", "Air scatters **short** waves most, so:", 1860)
        ask(page, "Why is the sky blue?")
        finished(page)
        expect(page.locator(".received")).not_to_be_empty()
        page.screenshot(path=artifacts / f"page-{scheme}.png")
        stub.will_refuse(503, "service_unavailable", "The service is not up yet.")
        ask(page, "And on Mars?")
        expect(page.get_by_role("alert")).to_be_visible()
        assert page.evaluate(LOW_CONTRAST) == []
        page.set_viewport_size({"width": 360, "height": 740})
        page.screenshot(path=artifacts / f"page-{scheme}-360.png")
