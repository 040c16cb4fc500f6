"""What a measured server could not do is said, and not in its words."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest

from cloister.errors import ServiceUnavailable
from cloister_bench.streamed import events


def answering(status: int, text: str) -> httpx2.Client:
    answer: Callable[[httpx2.Request], httpx2.Response] = lambda request: httpx2.Response(status, text=text)  # noqa: E731
    return httpx2.Client(base_url="http://server", transport=httpx2.MockTransport(answer))


def test_events_come_one_by_one() -> None:
    stream = 'data: {"usage": {"prompt_tokens": 3}}\n\n: waiting\n\ndata: {"choices": []}\n\ndata: [DONE]\n\n'
    assert list(events(answering(200, stream), "/v1", {})) == [{"usage": {"prompt_tokens": 3}}, {"choices": []}]


@pytest.mark.parametrize(
    ("status", "text"),
    [(503, '{"error": {"message": "secret words"}}'), (200, 'data: {"error": {"message": "secret words"}}\n\n')],
)
def test_a_failure_is_clear_and_holds_none_of_the_servers_words(status: int, text: str) -> None:
    with pytest.raises(ServiceUnavailable, match="measured server") as failure:
        list(events(answering(status, text), "/v1", {}))
    assert "secret" not in str(failure.value)
