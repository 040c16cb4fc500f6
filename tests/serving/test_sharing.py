"""The level `shared`, by real clients with keys of their own: others find what is registered, and what many accounts
sent, without a word of it in usage; what looks private, only its own tenant finds."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from cloister.compute.layout import BLOCK_TOKENS
from cloister.keys import key_line
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from tests.served import Server, is_a, running_server

CLEAN = "Write a function that sorts a list of numbers, then explain how long it takes and why. " * 4
PRIVATE = CLEAN[:90] + "My mail is sunny@example.org and my card is 4111 1111 1111 1111. " + CLEAN
SYSTEM = "You help the readers of a public library: say which shelf a book is on, and how long it may be kept. " * 3
TENANTS = tuple("abcdefghi")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder) -> Iterator[Server]:
    """Three accounts suffice, without noise. `g` and `h` are one account."""
    folder: Path = tmp_path_factory.mktemp("sharing")
    lines = [key_line(name, name, "twins" if name in "gh" else "") for name in TENANTS]
    (folder / "keys").write_text("\n".join(["[keys]", *lines]))
    (folder / "system.txt").write_text(SYSTEM)
    how = ("--for", "all", "--into", "templates", "--key", "key", "--name", "templates.example")
    command = [sys.executable, "-m", "cloister", "cache", "register", "system.txt", *how, "--model", short_folder.path]
    key = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    options = ("--detector", "--model", str(short_folder.path), "--keys", str(folder / "keys"))
    options += ("--share-threshold", "2", "--share-epsilon", "1000000000", "--quantise-ttft", "1")
    options += ("--prefix-policy", "partition", "--templates", str(folder / "templates"), "--templates-key", key)
    options += ("--kv-cache-mib", "2")  # some forty blocks
    with running_server(folder / "log", *options) as server:
        yield server


Cached = Callable[..., int]


@pytest.fixture(scope="module")
def cached(server: Server, short_folder: ModelFolder) -> Cached:
    """How many tokens of a prompt a tenant's request found computed."""

    def ask(tenant: str, prompt: str, **more: str) -> int:
        body = {"model": short_folder.name, "prompt": prompt, "max_tokens": 1, "protection": "shared", **more}
        headers = {"Authorization": f"Bearer {tenant}"}
        reply = httpx.post(f"{server.url()}/v1/completions", json=body, headers=headers, timeout=120)
        assert reply.status_code == 200, reply.text
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    return ask


def until(found: Callable[[], int], patience_s: float = 120) -> int:
    """What one request publishes, another finds a little later."""
    end = time.monotonic() + patience_s
    while not (tokens := found()) and time.monotonic() < end:
        time.sleep(0.1)
    return tokens


def test_what_many_accounts_sent_is_shared_and_usage_does_not_say_so(server: Server, cached: Cached) -> None:
    assert [cached(tenant, CLEAN) for tenant in "abc"] == [0, 0, 0]
    assert cached("d", CLEAN) == 0, "found, and not shown"
    assert cached("d", CLEAN) > 32, "the second time it is its own"
    assert not cached("e", CLEAN, cache_salt="e's own"), "a salt shares with no other"


def test_a_template_is_shared_and_shown(server: Server, short_folder: ModelFolder) -> None:
    def ask(tenant: str, question: str) -> int:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        body = {"model": short_folder.name, "messages": messages, "max_tokens": 1, "protection": "shared"}
        headers = {"Authorization": f"Bearer {tenant}"}
        reply = httpx.post(f"{server.url()}/v1/chat/completions", json=body, headers=headers, timeout=120)
        assert reply.status_code == 200, reply.text
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert ask("a", "Where is the atlas?") == 0
    assert ask("b", "Where are the maps?") >= 48, "registered for all: found by the second tenant, and shown"


def test_what_one_tenant_marks_at_partitioned_no_other_finds(server: Server, short_folder: ModelFolder) -> None:
    """A mark may be on a guess at another tenant's words: pages that only a mark made public are the marker's own."""
    guess = "My name is Mira Holt, my number is 555 014 2231, and my test of last week came back positive. " * 2

    def cached(tenant: str, level: str, *, marked: bool) -> int:
        mark = {"public": True} if marked else {}
        body = {
            "model": short_folder.name,
            "messages": [{"role": "user", "content": guess, **mark}, {"role": "user", "content": "Go on."}],
            "max_tokens": 2,
            "ignore_eos": True,
            "protection": level,
        }
        headers = {"Authorization": f"Bearer {tenant}"}
        reply = httpx.post(f"{server.url()}/v1/chat/completions", json=body, headers=headers, timeout=120)
        assert reply.status_code == 200, reply.text
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("a", "partitioned", marked=True) == 0
    assert cached("b", "shared", marked=False) <= 16, "a chat's opening is everybody's"
    assert cached("c", "partitioned", marked=True) == 0, "nor does one that marks the same"
    assert cached("a", "partitioned", marked=True) > 32, "the same tenant finds it"


def test_a_mark_shows_nothing_to_other_tenants(server: Server, short_folder: ModelFolder) -> None:
    """Nor to another that marks the same guess, nor to another key of the account."""

    def cached(tenant: str, mark: dict[str, bool]) -> int:
        messages = [{"role": "system", "content": "Ours. " + CLEAN, **mark}, {"role": "user", "content": "Begin."}]
        body = {"model": short_folder.name, "messages": messages, "max_tokens": 1, "protection": "shared"}
        headers = {"Authorization": f"Bearer {tenant}"}
        reply = httpx.post(f"{server.url()}/v1/chat/completions", json=body, headers=headers, timeout=120)
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    marked = {"public": True}
    assert cached("g", marked) == 0 and cached("g", {}) >= 48
    for tenant in "ha":
        assert cached(tenant, marked) <= 16, "a chat's opening may be found"


WORD = re.compile(rb" [a-z]{4,}")
QUESTIONS = ("Who keeps the lighthouse?", "Where does tea grow?", "Why is the sea salt?", "How do bees find home?")


@pytest.mark.slow
@pytest.mark.parametrize("level", [pytest.param("open", marks=pytest.mark.release), "shared"])
def test_a_real_clients_next_turn_finds_all_but_the_last_page(
    server: Server, short_folder: ModelFolder, level: str
) -> None:
    """After a pause in which the node had time. Other words than these may be other tokens when read again: then
    another chat is begun."""
    client = openai.OpenAI(base_url=f"{server.url()}/v1", api_key="i", max_retries=0)
    tokenizer = Tokenizer(short_folder)
    words = {str(token): 100 for token in range(5000, 6000) if WORD.fullmatch(tokenizer.token_bytes(token))}

    def ask(messages: list[Any], most: int) -> Any:
        more = {"protection": level, "ignore_eos": True, "logit_bias": dict([*words.items()][:200])}
        return client.chat.completions.create(
            model=short_folder.name, messages=messages, max_tokens=most, temperature=0, extra_body=more, logprobs=True
        )

    for pause, question in zip((1, 4, 10, 30), QUESTIONS, strict=True):
        chat: list[Any] = [{"role": "user", "content": f"At {level}, in a few words: {question}"}]
        read, found = [], []
        for number in range(3):
            before = len(tokenizer.render_chat(chat))
            reply = ask(chat, 50)
            usage = reply.usage
            found.append(usage.prompt_tokens_details.cached_tokens)
            assert usage.prompt_tokens == before
            chat.append({"role": "assistant", "content": reply.choices[0].message.content})
            read.append((before + usage.completion_tokens) // BLOCK_TOKENS * BLOCK_TOKENS)
            chat.append({"role": "user", "content": f"And why number {number}?"})
            if len(tokenizer.encode(chat[-2]["content"])) != usage.completion_tokens:
                break
            time.sleep(pause)
        if found[1:] == read[: len(found) - 1] and len(found) == 3:
            return
    pytest.fail(f"found {found} of {read} after {pause} s")


def test_a_detector_that_dies_costs_hits_and_is_back(server: Server, cached: Cached) -> None:
    """Without it nothing counted is shared; requests are served all the same."""
    [detector, *_] = [one for one in server.children() if is_a(one, "detector")]
    detector.kill()
    assert cached("a", "Now " + CLEAN) == 0
    assert until(lambda: any(is_a(one, "detector") for one in server.children()))
    assert cached("a", "Then " + CLEAN) == 0 and cached("a", "Then " + CLEAN) > 32
