"""A prompt that came sealed is in its vault alone: not in gateway, sealed API, controller or service. The answer's text
is not in the gateway, and a request's keys are with nobody once they have been used.

The search is the one of test_canary, through whole processes; that it can find is shown by what it finds in the clear.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from http.client import HTTPConnection
from pathlib import Path
from select import select
from typing import Any
from urllib.parse import urlsplit

import pytest

from cloister.audit.memory import Search, stopped
from cloister.config import DEVELOPMENT_KEY
from cloister.models.source import ModelFolder
from tests.redteam.test_canary import CHAT, COMPLETIONS, VAULT_LEVELS, Node, calling, four_ways, of_vaults
from tests.sealed import SealedClient, SealedReply
from tests.served import Server

PLAIN = re.compile(r"[a-zA-Z0-9 ,.]{24}")
CONTENT = re.compile(rb'"content":"((?:[^"\\]|\\.)*)"')

AT_A_LEVEL = pytest.mark.parametrize("level", ["partitioned", pytest.param("isolated", marks=pytest.mark.release)])
"""In the clear test_canary searches at both: what opens a sealed prompt does not ask which of them it is."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may read another process's memory"),
]


class SealedNode(Node):
    """The same node, asked through the secure channel."""

    @cached_property
    def _client(self) -> SealedClient:
        return SealedClient(self.server.url())

    @contextmanager
    def sealed(self, path: str, prompt: Any, **fields: Any) -> Iterator[tuple[SealedClient, SealedReply]]:
        """An answer that has begun to come and is far from its end."""
        client = SealedClient(self.server.url())
        with client.asking("POST", path, self.body(path, prompt, stream=True, **fields)) as reply:
            assert reply.status == 200, reply.read()
            for _ in range(3):
                next(reply.pieces())
            yield client, reply

    def whole(self, path: str, prompt: Any, **fields: Any) -> tuple[int, bytes]:
        return self._client.ask("POST", path, self.body(path, prompt, **fields))

    def processes_with(self, needles: Mapping[str, bytes]) -> dict[str, set[str]]:
        """The kinds of processes that have these bytes anywhere."""
        family = self.family()
        found: dict[str, set[str]] = {name: set() for name in needles}
        with stopped(family.all):
            search = Search(needles)
            for pid in family.all:
                for name, _, _ in search.find(pid):
                    found[name].add(family.name(pid).split()[0])
        return found

    def who_has(self, text: str) -> set[str]:
        """The same for a text, in the three widths that Python has for it: one strange character decides for all."""
        found = self.processes_with({width: text.encode(width) for width in ("utf-8", "utf-16-le", "utf-32-le")})
        return set().union(*found.values())


@pytest.fixture(scope="module")
def node(searched: tuple[Server, Path, ModelFolder]) -> SealedNode:
    return SealedNode(*searched)


@AT_A_LEVEL
def test_a_sealed_prompt_is_in_its_vault_only_and_nowhere_after(node: SealedNode, level: str) -> None:
    secret = node.secret()
    with ExitStack() as answers:
        for path, prompt in four_ways(secret):
            answers.enter_context(node.sealed(path, prompt, protection=level))
        assert of_vaults(node.holders(secret)) == 4
    assert node.holders(secret) == {}


def test_sealed_tools_are_in_their_vault_only(node: SealedNode) -> None:
    secret = node.secret()
    messages, tools = calling(secret)
    offered = {"tools": tools, "choice": "auto", "parallel": True}
    prompt = {"given": messages, "tools": offered, "template": {"word": f"A {secret.text} word"}}
    with node.sealed(CHAT, prompt, calls_tools=True):
        assert of_vaults(node.holders(secret)) == 1
    assert node.holders(secret) == {}


def test_whole_answers_and_failures_leave_nothing(node: SealedNode) -> None:
    secret = node.secret()
    text = secret.text
    for level in VAULT_LEVELS:
        for path, prompt in four_ways(secret):
            assert node.whole(path, prompt, protection=level, max_tokens=4)[0] == 200
        for path, prompt, fields in (
            (CHAT, [{"role": "user", "content": f"<confidential>{text}", "public": True}], {}),
            (CHAT, [{"role": text, "content": text}], {}),
            (COMPLETIONS, {"text": f"{text}</confidential>", "public": True}, {}),
            (COMPLETIONS, [text, {"a": text}], {}),
            (COMPLETIONS, f"{text} word " * 2000, {}),
        ):
            status, said = node.whole(path, prompt, protection=level, **fields)
            assert status == 400 and not secret.found_in(said)
    assert node.holders(secret) == {}


def test_at_open_nothing_is_left_either(node: SealedNode) -> None:
    """The sealed API reads the prompt and the service computes it; both forget."""
    secret = node.secret()
    for path, prompt in four_ways(secret):
        assert node.whole(path, prompt, protection="open", max_tokens=4)[0] == 200
        with node.sealed(path, prompt, protection="open"):
            pass
    assert node.whole(path, prompt, protection="open", max_tokens=1)[0] == 200
    assert node.holders(secret) == {}


def test_the_gateway_never_has_the_answers_text(node: SealedNode) -> None:
    prompt = [{"role": "user", "content": f"Tell a story of {node.secret().text[:8]} the dragon."}]
    said = json.loads(node.whole(CHAT, prompt, temperature=0, max_tokens=80)[1])["choices"][0]["message"]["content"]
    found_at = PLAIN.search(json.dumps(said)[1:-1], 60)
    assert found_at is not None, "no words that are written alike in JSON and in memory"
    fragment, passed = found_at[0], found_at.end() + 6
    with node.sealed(CHAT, prompt, temperature=0) as (_, reply):
        received = b""
        while len(b"".join(CONTENT.findall(received))) < passed:
            received += next(reply.pieces())
        assert "gateway" not in node.who_has(fragment)
    # In the clear it gathers the whole answer: the search would have found it.
    body = node.body(CHAT, prompt, temperature=0)
    headers = {"Authorization": f"Bearer {DEVELOPMENT_KEY}", "Content-Type": "application/json"}
    found: set[str] = set()
    for _ in range(5):
        with closing(HTTPConnection(urlsplit(node.server.url()).netloc)) as asking:
            asking.request("POST", CHAT, json.dumps(body), headers)
            while "gateway" not in found and not select([asking.sock], [], [], 0)[0]:
                found = node.who_has(fragment)
        if "gateway" in found:
            return
    raise AssertionError("the gateway has the answer, and the search did not see it")


@AT_A_LEVEL
def test_keys_are_with_nobody_once_used(node: SealedNode, level: str) -> None:
    with node.sealed(CHAT, four_ways(node.secret())[0][1], protection=level) as (client, _):
        found = node.processes_with(client.last_keys)
    # A vault's memory is wiped by its end. It has the prompt itself, and no other key than the prompt's.
    assert found.pop("prompt") <= {"vault"}
    assert found == {"request": set(), "response": set()}
