"""Web pages of other origins: none may call the API but those that the operator named."""

from __future__ import annotations

import httpx
import pytest
from pydantic import ValidationError

from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer, FakeBackend, chat_body

CHAT = "/v1/chat/completions"
PAGE, OTHER = "https://page.example", "https://other.example"
ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-lang"}


def client(origins: str | None) -> httpx.AsyncClient:
    settings = GatewaySettings(allow_origin=origins)
    app = create_app(FakeBackend(), ByteTokenizer(), MODEL, settings, created=1)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=KEY)


async def test_a_named_page_may_ask_and_read() -> None:
    async with client(f"https://a.example:8443,{PAGE}") as http:
        before = await http.options(CHAT, headers={"Origin": PAGE, **ASKED})
        assert before.status_code == 200 and before.headers["access-control-allow-origin"] == PAGE
        assert "x-stainless-lang" in before.headers["access-control-allow-headers"]
        answer = await http.post(CHAT, json=chat_body(), headers={"Origin": PAGE})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
        assert "x-cloister-protection" in answer.headers["access-control-expose-headers"].lower()
        assert "access-control-allow-credentials" not in answer.headers
        refused = await http.post(CHAT, json=chat_body(n=0), headers={"Origin": PAGE})
        assert refused.status_code == 400 and refused.headers["access-control-allow-origin"] == PAGE, "it reads why"


@pytest.mark.parametrize("origins", [None, PAGE])
async def test_another_page_may_not(origins: str | None) -> None:
    async with client(origins) as http:
        for origin in (OTHER, "null", "https://page.example.evil.example", f"{PAGE}:444"):
            before = await http.options(CHAT, headers={"Origin": origin, **ASKED})
            assert before.status_code in (400, 405) and "access-control-allow-origin" not in before.headers
            answer = await http.post(CHAT, json=chat_body(), headers={"Origin": origin})
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("wrong", ["*", "page.example", f"{PAGE}/", f"{PAGE}, {OTHER}", "", "https://*.example"])
def test_origins_are_whole(wrong: str) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings(allow_origin=wrong)
