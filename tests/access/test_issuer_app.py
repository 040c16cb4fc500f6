"""The issuer over HTTP: its list for everyone, tokens for tenants with a key, and refusals that say why."""

import hashlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from cloister.access.batches import (
    BATCH,
    DIRECTORY,
    ONE,
    TOKENS,
    read_requests,
    read_responses,
    write_requests,
    write_responses,
)
from cloister.access.issuer_app import issuer_app
from cloister.access.issuing import Issuer
from cloister.access.token_keys import TokenKeys
from cloister.access.tokens import REQUEST_BYTES, RESPONSE_BYTES, PendingToken
from cloister.errors import TokenInvalid
from cloister.keys import KeyRing
from cloister.messages.controller_frontend import KeyEntry

KEY = "sk-of-alice"


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    issuer = Issuer(tmp_path, "issuer.example", TOKENS, per_day=5)
    ring = KeyRing([KeyEntry(hashlib.sha256(KEY.encode()).digest(), "alice")])
    return TestClient(issuer_app(issuer, ring), raise_server_exceptions=False)


def asked(client: TestClient, count: int, key: str = KEY) -> tuple[TokenKeys, list[PendingToken], object]:
    keys = TokenKeys.decode(client.get(DIRECTORY).content)
    pending = [PendingToken.draw(keys.current(keys.all[-2].since).key, keys.challenge) for _ in range(count)]
    headers = {"Authorization": f"Bearer {key}", "Content-Type": BATCH[0]}
    answer = client.post(TOKENS, content=write_requests([each.request for each in pending]), headers=headers)
    return keys, pending, answer


def test_a_batch_becomes_tokens_that_count(client: TestClient) -> None:
    keys, pending, answer = asked(client, 4)
    assert answer.status_code == 200 and answer.headers["content-type"] == BATCH[1]
    tokens = [one.finish(each) for one, each in zip(pending, read_responses(answer.content), strict=True)]
    for token in tokens:
        keys.check(token, keys.all[-2].since)


def test_one_request_alone_is_answered_as_the_rfc_has_it(client: TestClient) -> None:
    keys = TokenKeys.decode(client.get(DIRECTORY).content)
    pending = PendingToken.draw(keys.current(keys.all[-2].since).key, keys.challenge)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": ONE[0]}
    answer = client.post(TOKENS, content=pending.request, headers=headers)
    assert answer.status_code == 200 and answer.headers["content-type"] == ONE[1]
    pending.finish(answer.content).verify(pending.key)


def test_an_unknown_key_gets_none(client: TestClient) -> None:
    assert asked(client, 1, "sk-of-mallory")[2].status_code == 401
    assert asked(client, 5)[2].status_code == 200


def test_a_day_that_is_used_up_says_when_to_come_again(client: TestClient) -> None:
    answer = asked(client, 6)[2]
    assert answer.status_code == 429 and 0 < int(answer.headers["Retry-After"]) <= 86_401


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x40\x01x", b"x" * 100_000, write_requests([b"x" * 7])])
def test_a_body_that_is_none_is_refused(client: TestClient, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": BATCH[0]}
    assert client.post(TOKENS, content=body, headers=headers).status_code == 400
    assert client.post(TOKENS, content=body, headers={**headers, "Content-Type": "text/plain"}).status_code in (
        400,
        415,
    )


@given(count=st.integers(0, 20))
def test_batches_are_read_as_they_were_written(count: int) -> None:
    requests = [bytes([number]) * REQUEST_BYTES for number in range(count)]
    assert read_requests(write_requests(requests)) == requests
    responses = [bytes([number]) * RESPONSE_BYTES for number in range(count)]
    assert read_responses(write_responses(responses)) == responses


@given(data=st.binary(max_size=40))
def test_bytes_that_are_no_batch_are_refused_or_a_batch(data: bytes) -> None:
    for read in (read_requests, read_responses):
        with suppress(TokenInvalid):
            read(data)
