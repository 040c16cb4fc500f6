"""Stock balancers over nodes, with the files of deploy/: streams pass as they come, and who drains gets nothing new."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from cloister.config import DEVELOPMENT_KEY
from tests.gateway.balanced import NODES, Node, balanced, node, program, serving
from tests.gateway.fakes import KEY, MODEL, chat_body

SECRET = "Wolverhampton 4711"


@pytest.fixture(params=["haproxy", "nginx"])
def balancer(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if program(name) is None:
        pytest.skip(f"{name} is not installed (Debian: {name.replace('nginx', 'nginx-light')})")
    return name


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    made = [node(name) for name in NODES]
    with serving(made):
        yield made


def ask(url: str, text: str = "Hi") -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, max_retries=0) as client:
        asked = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], temperature=0)
    said = asked.choices[0].message.content
    assert said and said.startswith("I am node ")
    return said.split()[3].rstrip(",")


def test_all_nodes_get_requests_and_no_file_gets_words(balancer: str, nodes: list[Node], tmp_path: Path) -> None:
    with balanced(balancer, tmp_path, nodes) as url:
        assert {ask(url, SECRET) for _ in range(12)} == set(NODES)
        with pytest.raises(openai.BadRequestError, match="context"):
            ask(url, SECRET + " and more" * 20_000)
        with httpx.Client(headers=KEY) as http:
            assert http.delete(f"{url}/v1/sessions/wolverhampton").status_code == 204
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).lower()
    assert b"wolverhampton" not in kept and b"a while" not in kept


def test_a_stream_passes_as_it_comes(balancer: str, nodes: list[Node], tmp_path: Path) -> None:
    for each in nodes:
        each.backend.pause = 0.05
    with balanced(balancer, tmp_path, nodes) as url, httpx.Client(headers=KEY, timeout=60) as http:
        began = time.monotonic()
        with http.stream("POST", f"{url}/v1/chat/completions", json=chat_body(stream=True)) as answer:
            moments = [time.monotonic() - began for line in answer.iter_lines() if line.startswith("data: {")]
    assert len(moments) > 20 and moments[0] < moments[-1] / 2, "the first word came long before the last"


def test_a_node_that_drains_ends_what_runs_and_gets_nothing_new(
    balancer: str, nodes: list[Node], tmp_path: Path
) -> None:
    """A rolling upgrade, seen from the balancer: one node after the other refuses, and no request fails."""
    with balanced(balancer, tmp_path, nodes) as url, httpx.Client(headers=KEY, timeout=60) as http:
        for each in nodes:
            each.backend.pause = 0.03
        with http.stream("POST", f"{url}/v1/chat/completions", json=chat_body(stream=True)) as answer:
            lines = answer.iter_lines()
            first = [next(lines) for _ in range(8)]
            (busy,) = [each for each in nodes if each.backend.open]
            busy.drain()
            for each in nodes:
                each.backend.pause = 0.03 if each is busy else 0
            others = set(NODES) - {busy.name}
            if balancer == "haproxy":
                time.sleep(2)  # it asks each second; nginx tries another node at once
            assert {ask(url) for _ in range(8)} == others
            rest = list(lines)
        assert "data: [DONE]" in rest and len(first + rest) > 60, "what ran came to its end"


def test_a_node_that_is_gone_takes_no_request_with_it(balancer: str, tmp_path: Path) -> None:
    alive, dead = [node("one"), node("two")], node("three")
    with serving([dead]):
        pass
    with serving(alive), balanced(balancer, tmp_path, [*alive, dead]) as url:
        assert {ask(url) for _ in range(12)} == {"one", "two"}


def test_without_a_node_users_hear_503(balancer: str, nodes: list[Node], tmp_path: Path) -> None:
    with balanced(balancer, tmp_path, nodes) as url, httpx.Client(headers=KEY) as http:
        for each in nodes:
            each.drain()
        time.sleep(2)
        answer = http.post(f"{url}/v1/chat/completions", json=chat_body())
        assert answer.status_code in (502, 503)
