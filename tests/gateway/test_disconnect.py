"""A client that leaves is noticed at once, on real sockets, and its request is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
import pytest

from tests.gateway.fakes import KEY, FakeBackend, chat_body, completion_body


def until(condition: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if condition():
            return True
        threading.Event().wait(0.01)
    return False


def test_leaving_a_stream_cancels_it(url: str, backend: FakeBackend) -> None:
    backend.ends, backend.pause = False, 0.01
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=chat_body(stream=True, n=3), headers=KEY) as response:
        for line in response.iter_lines():
            if '"content":"H"' in line:
                assert backend.open == 3
                break
    assert until(lambda: backend.open == 0)
    assert backend.cancelled == 3


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_cancels_it(url: str, backend: FakeBackend, stream: bool) -> None:
    backend.pause = 30
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=completion_body(stream=stream, n=2), headers=KEY, timeout=0.3)
    assert until(lambda: backend.open == 0)
    assert backend.cancelled == 2 and len(backend.submitted) == 2


def test_a_client_that_stays_is_not_disturbed(url: str, backend: FakeBackend) -> None:
    backend.pause = 0.01
    response = httpx.post(f"{url}/v1/completions", json=completion_body(), headers=KEY)
    assert response.json()["choices"][0]["text"] == backend.answer
    assert backend.cancelled == 0


def test_the_connection_is_kept_for_the_next_request(url: str, backend: FakeBackend) -> None:
    with httpx.Client(base_url=url, headers=KEY) as client:
        for stream in (True, False, True):
            response = client.post("/v1/chat/completions", json=chat_body(stream=stream))
            assert "Hello" in response.text or '"H"' in response.text
            assert response.headers.get("connection") != "close"
    assert backend.cancelled == 0
