"""A server that waits for its weights' key: shows evidence, takes the right key from whoever has it, serves nothing."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from cloister.attest.evidence import read_evidence, read_statement
from cloister.attest.policy import Policy
from cloister.channel.envelope import release_to
from cloister.channel.sealing import ChannelKey
from cloister.client.key_release import release_key
from cloister.client.verification import NodeNotVerified
from cloister.config import ControllerSettings, GatewaySettings, Settings
from cloister.controller.provision import Delivery
from cloister.errors import ChannelBroken, SetupError
from cloister.sealed_weights.file import WeightsBundle, seal_weights
from cloister.transparency.note import SigningKey
from tests.forked import forking

KEY = bytes(range(32))
PROVIDER = SigningKey.generate("provider.example/weights")
SETTINGS = Settings(controller=ControllerSettings(attester="software"), gateway=GatewaySettings(port=0))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CLOISTER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
async def delivery(tmp_path: Path) -> AsyncIterator[Delivery]:
    (tmp_path / "config.json").write_text("{}")
    seal_weights([tmp_path / "config.json"], "a-model", tmp_path / "sealed", KEY, PROVIDER)
    bundle = WeightsBundle.open(tmp_path / "sealed", PROVIDER.verifier)
    one = Delivery(bundle, SETTINGS)
    with forking("cloister.gateway.key_waiting"):
        one.url = await one.open()  # type: ignore[attr-defined]
        yield one
        await one.close()
    bundle.close()


def url_of(delivery: Delivery) -> str:
    return str(delivery.url)  # type: ignore[attr-defined]


async def test_evidence_says_which_weights_it_waits_for(delivery: Delivery) -> None:
    nonce = secrets.token_bytes(32)
    async with httpx2.AsyncClient(base_url=url_of(delivery)) as client:
        answer = await client.post("/v1/evidence", json={"nonce": nonce.hex(), "since": 0})
    assert answer.headers["cache-control"] == "no-store"
    evidence = read_evidence(answer.content)
    statement = read_statement(evidence.statement)
    assert (statement.model, statement.weights) == ("a-model", delivery._bundle.header.digest)
    assert evidence.channel_key == delivery._channel_key.public


async def test_a_provider_that_verified_it_releases_the_key(delivery: Delivery) -> None:
    policy = Policy(allow_software_tee=True, accept_missing_layers=("memory_lock", "no_swap"))
    verification = await asyncio.to_thread(release_key, url_of(delivery), KEY, policy)
    assert verification.passed and await delivery.key == KEY


async def test_without_the_word_for_it_a_software_node_gets_nothing(delivery: Delivery) -> None:
    with pytest.raises(NodeNotVerified):
        await asyncio.to_thread(release_key, url_of(delivery), KEY, Policy())
    assert not delivery.key.done()


async def test_another_key_is_not_taken(delivery: Delivery) -> None:
    policy = Policy(allow_software_tee=True, accept_missing_layers=("memory_lock", "no_swap"))
    with pytest.raises(SetupError, match="not the key"):
        await asyncio.to_thread(release_key, url_of(delivery), bytes(32), policy)
    assert not delivery.key.done()


async def test_what_is_sealed_to_another_node_is_not_taken(delivery: Delivery) -> None:
    message = release_to(ChannelKey.generate().public, KEY).message
    async with httpx2.AsyncClient(base_url=url_of(delivery)) as client:
        answer = await client.post("/v1/weights/key", content=message)
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "channel_key_unknown"
    assert not delivery.key.done()


async def test_the_answer_is_the_nodes_own(delivery: Delivery) -> None:
    release = release_to(delivery._channel_key.public, KEY)
    async with httpx2.AsyncClient(base_url=url_of(delivery)) as client:
        answer = await client.post("/v1/weights/key", content=release.message)
        again = await client.post("/v1/weights/key", content=release.message)
    release.confirm(answer.content)
    assert again.status_code == 200 and again.content != answer.content
    other = release_to(delivery._channel_key.public, KEY)
    with pytest.raises(ChannelBroken):
        other.confirm(answer.content)


async def test_bad_questions_and_everything_else(delivery: Delivery) -> None:
    async with httpx2.AsyncClient(base_url=url_of(delivery)) as client:
        for body in (b"", b"{}", b'{"nonce": "00"}', b"[", json.dumps({"nonce": "0" * 64, "since": -1}).encode()):
            answer = await client.post("/v1/evidence", content=body)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "nonce"
        for path in ("/v1/evidence", "/v1/weights/key"):
            assert (await client.post(path, content=bytes(5000))).status_code == 413
        assert (await client.post("/v1/weights/key", content=b"hello")).json()["error"]["code"] == "channel_broken"
        for path in ("/v1/models", "/health", "/"):
            answer = await client.get(path)
            assert answer.status_code == 503 and "weights release" in answer.json()["error"]["message"]
        answer = await client.post("/v1/chat/completions", json={"messages": []})
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "waiting_for_key"
    assert not delivery.key.done()


async def test_key_waiting_that_dies_is_noticed(delivery: Delivery) -> None:
    delivery._waiting._child.kill()
    with pytest.raises(Exception, match=r"[Kk]ey waiting ended"):
        await asyncio.wait_for(delivery.key, 30)
