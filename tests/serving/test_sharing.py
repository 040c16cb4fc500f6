"""The level `shared`, by real clients with keys of their own: another tenant finds what a detector passes; what it does
not pass, only who wrote it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from cloister.keys import key_line
from cloister.models.source import ModelFolder
from tests.served import Server, is_a, running_server

CLEAN = "Write a function that sorts a list of numbers, then explain how long it takes and why. " * 4
PRIVATE = CLEAN[:90] + "My mail is sunny@example.org and my card is 4111 1111 1111 1111. " + CLEAN


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("sharing")
    (folder / "keys").write_text("\n".join(["[keys]", *(key_line(name, name) for name in ("ann", "bob", "cem"))]))
    how = ("--detector", "--model", str(short_folder.path), "--keys", str(folder / "keys"))
    how += ("--kv-cache-mib", "2", "--cache-disk-bytes", str(16 << 20))  # some forty blocks, and more on a disk
    with running_server(folder / "log", *how) as server:
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


def test_what_a_detector_passes_is_shared_and_nothing_else(server: Server, cached: Cached) -> None:
    tokens = until(lambda: cached("ann", CLEAN) and cached("bob", CLEAN))
    assert tokens > 32, "another tenant finds what holds nothing private"
    assert not cached("cem", CLEAN, cache_salt="cem's own"), "who salts shares with nobody"
    assert cached("ann", PRIVATE) <= 16
    until(lambda: cached("bob", CLEAN + " Thank you very much for all of it, and be brief."))  # read after that
    mine, others = cached("ann", PRIVATE), cached("bob", PRIVATE)
    assert mine > others + 32, "the same words are found by who wrote them"
    assert others <= len(PRIVATE[:90].split()) + 16, "and by another only before the first private one"


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

    assert cached("ann", "partitioned", marked=True) == 0
    assert cached("bob", "shared", marked=False) <= 16, "a chat's opening is everybody's"
    assert cached("cem", "partitioned", marked=True) == 0, "nor does one that marks the same"
    assert cached("ann", "partitioned", marked=True) > 32, "the same tenant finds it"


def test_a_detector_that_dies_costs_hits_and_is_back(server: Server, cached: Cached) -> None:
    [detector, *_] = [one for one in server.children() if is_a(one, "detector")]
    detector.kill()
    prompt = "Now " + CLEAN
    assert cached("ann", prompt) == 0
    assert until(lambda: cached("ann", "Then " + prompt) and cached("bob", "Then " + prompt))


def test_what_the_pool_has_no_room_for_comes_back_from_the_disk(cached: Cached) -> None:
    """The service writes and reads it in its sandbox. Where the disk is late it is computed, so that is tried again."""
    question = "What becomes of a lake when the river that feeds it is led elsewhere? " * 5

    def asked_again() -> int:
        for other in range(12):
            cached("ann", f"Number {other} of twelve. " + f"Tell me about the number {other}, at some length. " * 8)
        return cached("ann", question)

    assert not cached("ann", question) and cached("ann", question) > 32
    assert until(asked_again) > 32
