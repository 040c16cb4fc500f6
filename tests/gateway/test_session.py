"""Sessions: named ones are kept and scoped by tenant, others end with their request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloister.backend.base import VaultJob
from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from cloister.keys import key_line, new_key
from tests.gateway.fakes import MODEL, ByteTokenizer, FakeBackend, chat_body, completion_body

CHAT = "/v1/chat/completions"
HEADER = "X-Cloister-Session"


def jobs(backend: FakeBackend) -> list[VaultJob]:
    found = [each.job for each in backend.submitted]
    assert all(isinstance(job, VaultJob) for job in found)
    return found  # type: ignore[return-value]


async def test_the_choices_of_one_request_share_a_session_that_ends_with_it(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    for _ in range(2):
        response = await http.post("/v1/completions", json=completion_body(prompt=["a", "b"], n=2))
        assert HEADER not in response.headers, "a session nobody named is nobody's to name"
    first, second = jobs(backend)[:4], jobs(backend)[4:]
    assert len({job.session for job in first}) == len({job.session for job in second}) == 1
    assert first[0].session != second[0].session
    assert len(first[0].session) >= 22, "not to be guessed"
    assert not any(job.keep for job in jobs(backend))


@pytest.mark.parametrize("place", ["body", "header", "both"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_named_session_is_kept(http: httpx.AsyncClient, backend: FakeBackend, place: str, stream: bool) -> None:
    name = "x" * 126 + "/~"
    fields = {} if place == "header" else {"session": name}
    headers = {} if place == "body" else {HEADER: name}
    response = await http.post(CHAT, json=chat_body(stream=stream, **fields), headers=headers)
    assert response.headers[HEADER] == name
    assert [(job.session, job.keep) for job in jobs(backend)] == [(name, True)]


@pytest.mark.parametrize("name", ["", "x" * 129, "two words", "é"])
async def test_a_header_that_is_no_name_is_refused(http: httpx.AsyncClient, backend: FakeBackend, name: str) -> None:
    response = await http.post(CHAT, json=chat_body(), headers={HEADER: name.encode("latin-1")})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "session"
    assert not backend.submitted


async def test_body_and_header_must_agree(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    response = await http.post(CHAT, json=chat_body(session="a"), headers={HEADER: "b"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "session")
    assert not backend.submitted


async def test_ending_a_session(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    for path, name in (("chat-1", "chat-1"), ("a%2Fb%3Fc", "a/b?c"), ("never-seen", "never-seen")):
        response = await http.delete(f"/v1/sessions/{path}")
        assert (response.status_code, response.content) == (204, b"")
        assert backend.ended_sessions[-1] == ("development", name, "")
    assert (await http.delete(f"/v1/sessions/{'x' * 129}")).status_code == 400
    assert (await http.delete("/v1/sessions/two%20words")).status_code == 400
    assert (await http.delete("/v1/sessions/x", headers={"Authorization": "Bearer no"})).status_code == 401
    assert len(backend.ended_sessions) == 3


@pytest.fixture
async def two_tenants(
    backend: FakeBackend, tmp_path: Path
) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, Any], dict[str, Any]]]:
    ann, bob = new_key(), new_key()
    path = tmp_path / "keys.toml"
    path.write_text(f"[keys]\n{key_line(ann, 'ann', 'lab')}\n{key_line(bob, 'bob')}")
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(keys_file=path), created=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        yield http, {"Authorization": f"Bearer {ann}"}, {"Authorization": f"Bearer {bob}"}


async def test_tenant_and_trust_group_come_from_the_key_alone(
    two_tenants: tuple[httpx.AsyncClient, dict[str, Any], dict[str, Any]], backend: FakeBackend
) -> None:
    http, ann, bob = two_tenants
    for key in (ann, bob):
        assert (await http.post(CHAT, json=chat_body(session="same"), headers=key)).is_success
        for wish in ({"group": "lab"}, {"trust_group": "lab"}, {"tenant": "ann"}):
            assert (await http.post(CHAT, json=chat_body(**wish), headers=key)).status_code == 400
        header = {"X-Cloister-Trust-Group": "lab"}
        assert (await http.post(CHAT, json=chat_body(), headers={**key, **header})).status_code == 400
    told = [(each.tenant, job.session, job.group) for each, job in zip(backend.submitted, jobs(backend), strict=True)]
    assert told == [("ann", "same", "lab"), ("bob", "same", "")]
    for key in (ann, bob):
        await http.delete("/v1/sessions/same", headers=key)
    assert backend.ended_sessions == [("ann", "same", "lab"), ("bob", "same", "")]
