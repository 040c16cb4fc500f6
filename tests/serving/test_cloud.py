"""A whole node that takes tokens: each pays for one call, names no user, and is gone when it is used."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import cloister
from cloister.access.cloud import Cloud
from cloister.access.spent import NONCE_BYTES
from cloister.access.tokens import Token, authenticate, authorization
from cloister.access.wallet import Wallet
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import CloisterError, SetupError
from cloister.fairness import ANONYMOUS
from tests.cloud import TestCloud
from tests.served import Command, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def issuer(cloud: TestCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, str]]:
    folder = tmp_path_factory.mktemp("issuer")
    shutil.copytree(cloud.folder / "issuer", folder / "keys")  # one folder is one issuer's
    command = Command(folder / "log", "issuer", "--port", "0", "--folder", str(folder / "keys"))
    yield command, command.wait_for(r"Keys +(http://[^/]+)/", 60)
    command.stop()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory, tiny_server: Server) -> Iterator[tuple[Command, str]]:
    command = Command(tmp_path_factory.mktemp("relay") / "log", "relay", "--to", tiny_server.url(), "--port", "0")
    yield command, command.wait_for(r"Relay +(http://\S+)", 60)
    command.stop()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path / "data"))


def ask(server: Server, token: Token | bytes, **more: Any) -> httpx.Response:
    header = authorization(token) if isinstance(token, Token) else token.decode()
    body = {"model": "tiny-llama", "prompt": "a", "max_tokens": 2, "temperature": 0, **more}
    return httpx.post(server.url() + "/v1/completions", json=body, headers={"Authorization": header}, timeout=120)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def model_of(server: Server) -> str:
    answer = httpx.get(server.url() + "/v1/models", headers={"Authorization": f"Bearer {DEVELOPMENT_KEY}"})
    return str(answer.json()["data"][0]["id"])


def test_a_token_pays_for_one_call_at_the_node_that_it_names(tiny_server: Server, cloud: TestCloud) -> None:
    token, model = cloud.token(), model_of(tiny_server)
    assert ask(tiny_server, token, model=model).status_code == 200
    assert code(ask(tiny_server, token, model=model)) == (401, "token_spent")
    assert code(ask(tiny_server, cloud.token("away"), model=model)) == (401, "token_invalid")
    forged = cloud.token()
    forged = Token(forged.nonce, forged.challenge_digest, forged.key_id, forged.authenticator[::-1])
    assert code(ask(tiny_server, forged, model=model)) == (401, "token_invalid")
    assert code(ask(tiny_server, b"PrivateToken token=x", model=model)) == (401, "token_invalid")


def test_a_call_without_key_or_token_learns_which_tokens_count(tiny_server: Server, cloud: TestCloud) -> None:
    answer = httpx.get(tiny_server.url() + "/v1/models")
    headers = answer.headers.get_list("WWW-Authenticate")
    assert answer.status_code == 401 and headers[0] == "Bearer"
    assert headers[1] == authenticate(cloud.list.token_keys.challenge)


def test_a_token_belongs_to_no_session(tiny_server: Server, cloud: TestCloud) -> None:
    answer = ask(tiny_server, cloud.token(), model=model_of(tiny_server), session="mine")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "session"


def test_a_token_stays_spent_when_the_gateway_is_killed(tiny_server: Server, cloud: TestCloud) -> None:
    token, model = cloud.token(), model_of(tiny_server)
    assert ask(tiny_server, token, model=model).status_code == 200
    before = tiny_server.child("gateway")
    before.kill()
    before.wait(20)
    for _ in range(200):
        try:
            assert code(ask(tiny_server, token, model=model)) == (401, "token_spent")
            break
        except httpx.TransportError:
            tiny_server.child("gateway")
    else:
        raise AssertionError("the gateway does not come back")


def test_the_client_pays_with_tokens_and_its_answers_are_those_of_a_key(
    tiny_server: Server, cloud: TestCloud, issuer: tuple[Command, str], relay: tuple[Command, str], tmp_path: Path
) -> None:
    url, model = tiny_server.url(), model_of(tiny_server)
    asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "a b"}], "max_tokens": 8}
    with cloister.Client(url, api_key=DEVELOPMENT_KEY, allow_software_tee=True) as named:
        expected = named.chat.completions.create(**asked, temperature=0)
    wallet = Wallet(tmp_path / "data" / "tokens.json")
    way = {"issuer": issuer[1], "cloud": cloud.file, "allow_software_tee": True, "api_key": DEVELOPMENT_KEY}
    with cloister.Client(url, **way, max_retries=30) as client:
        whole = client.chat.completions.create(**asked, temperature=0)
        stream = client.chat.completions.create(**asked, temperature=0, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    with cloister.Client(url, **way, relay=relay[1], max_retries=30) as hidden:
        behind = hidden.chat.completions.create(**asked, temperature=0)
    said = expected.choices[0].message.content
    assert behind.choices[0].message.content == said
    for log in (tiny_server.said, relay[0].said):
        assert "PrivateToken" not in log and ANONYMOUS not in log
    kept = b"".join(path.read_bytes() for path in (cloud.folder / "spent").rglob("*.spent"))
    assert kept and len(kept) % NONCE_BYTES == 0, "nonces and no more"
    assert whole.choices[0].message.content == said == streamed
    assert wallet.count([key.id for key in cloud.list.token_keys.all]) <= 62


def test_a_node_that_follows_another_list_gets_nothing(
    tiny_server: Server, cloud: TestCloud, issuer: tuple[Command, str]
) -> None:
    """A list of one's own would tell users apart."""
    [here] = [node for node in cloud.list.nodes if node.name == "here"]
    own = Cloud((here,), cloud.list.token_keys)
    way = {"issuer": issuer[1], "cloud": own, "allow_software_tee": True, "api_key": DEVELOPMENT_KEY}
    with (
        cloister.Client(tiny_server.url(), **way, max_retries=0) as client,
        pytest.raises(openai.APIConnectionError, match="another list") as refused,
    ):
        client.models.list()
    assert isinstance(refused.value, CloisterError)


def test_what_is_missing_is_named(tiny_server: Server, cloud: TestCloud) -> None:
    url = tiny_server.url()
    with pytest.raises(SetupError, match="list of the cloud"):
        cloister.Client(url, issuer="http://127.0.0.1:1", api_key="x", allow_software_tee=True)
    with pytest.raises(SetupError, match="no node of the cloud"):
        cloister.Client("http://127.0.0.1:1", issuer="http://127.0.0.1:1", cloud=cloud.file, api_key="x")
