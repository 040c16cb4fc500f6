"""`verify`: an answer that a vault computes again, at every level that has one, also at those that have none."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cloister.backend.base import OpenJob, VaultJob
from cloister.config import GatewaySettings
from cloister.gateway.api import Levels
from cloister.gateway.app import create_app
from cloister.levels import LEVELS as EVERY_LEVEL
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer, FakeBackend, chat_body

CHAT = "/v1/chat/completions"


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(tuple(EVERY_LEVEL))


@pytest.mark.parametrize("level", ["open", "shared", "partitioned", "isolated"])
async def test_a_vault_reads_and_verifies_what_asks_for_it(
    http: httpx.AsyncClient, backend: FakeBackend, level: str
) -> None:
    for verify in (True, False):
        answer = await http.post(CHAT, json=chat_body(protection=level, verify=verify))
        assert answer.is_success and answer.headers["X-Cloister-Protection"] == level
    first, second = (each.job for each in backend.submitted)
    assert isinstance(first, VaultJob) and first.verify
    assert first.level == ("isolated" if level == "isolated" else "partitioned")
    assert isinstance(second, OpenJob) or not second.verify


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"protection": "mpc"}, "verify"),
        ({"protection": "open", "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"protection": "open", "verify": "yes"}, "verify"),
    ],
)
async def test_what_no_vault_can_verify_is_refused(
    http: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(CHAT, json=chat_body(**{"verify": True, **fields}))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert not backend.submitted


async def test_a_node_without_vaults_refuses_to_verify_and_does_not_answer_unverified() -> None:
    backend = FakeBackend(("open",))
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=KEY) as http:
        answer = await http.post(CHAT, json=chat_body(protection="open", verify=True))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "protection_unavailable", "verify")
        assert not backend.submitted
        [model] = (await http.get("/v1/models")).json()["data"]
        assert {each["verified"] for each in model["protection"] if each["enabled"]} == {None}


@pytest.mark.parametrize(("mode", "shown"), [("off", "asked"), ("sample:0.1", "sample:0.1"), ("all", "all")])
def test_each_level_says_how_its_answers_are_verified(mode: str, shown: str) -> None:
    found = {each.id: each.verified for each in Levels(tuple(EVERY_LEVEL), verify=mode).table}
    asked = {"open": "asked", "shared": "asked"}
    assert found == asked | {"partitioned": shown, "obfuscated": shown, "isolated": None, "mpc": None}
