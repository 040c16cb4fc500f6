"""A node that is about to stop: what runs goes on, what is new gets 503, and the end comes when nothing runs."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from cloister.errors import ServiceUnavailable
from cloister.gateway.drain import Drain
from tests.gateway.fakes import chat_body


def test_it_is_idle_when_the_last_request_has_ended() -> None:
    drain, idle = Drain(), []
    with drain.request("/v1/completions"):
        with drain.request("/v1/models"):
            drain.begin(lambda: idle.append(True))
        assert not idle
        with pytest.raises(ServiceUnavailable), drain.request("/v1/completions"):
            pass
        with drain.request("/health"):
            pass
        assert not idle
    assert idle
    at_once: list[bool] = []
    Drain().begin(lambda: at_once.append(True))
    assert at_once


async def test_new_requests_are_sent_elsewhere(http: httpx.AsyncClient, app: FastAPI) -> None:
    assert (await http.get("/ready")).status_code == 200
    app.state.drain.begin(lambda: None)
    refused = await http.post("/v1/chat/completions", json=chat_body())
    assert refused.status_code == 503 and refused.headers["retry-after"]
    assert refused.json()["error"]["code"] == "service_unavailable"
    assert (await http.get("/ready")).status_code == 503, "a balancer sends it no more requests"
    assert (await http.get("/health")).status_code == 200, "it is well, and must not be killed"
