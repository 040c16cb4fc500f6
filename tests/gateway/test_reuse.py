"""What a caller is told of reuse, and how it narrows or ends it."""

from __future__ import annotations

import httpx
import pytest

from cloister.backend.base import OpenJob, VaultJob
from tests.gateway.fakes import LEVELS, FakeBackend, chat_body, completion_body

CHAT = "/v1/chat/completions"


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend((*LEVELS, "shared"))


async def test_usage_says_what_the_request_itself_found(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.cached = [16]
    usage = (await http.post(CHAT, json=chat_body(protection="open"))).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 16}
    backend.cached = [16, 32, 8, 8]
    body = completion_body(prompt=["a" * 40, "b" * 40], n=2, protection="open")
    usage = (await http.post("/v1/completions", json=body)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 16 + 8}, "each prompt once, by its least"


@pytest.mark.parametrize("level", ["open", "partitioned"])
async def test_a_salt_goes_with_the_prompt_and_is_not_shown(
    http: httpx.AsyncClient, backend: FakeBackend, level: str
) -> None:
    assert (await http.post(CHAT, json=chat_body(protection=level, cache_salt="pepper"))).status_code == 200
    job = backend.submitted[-1].job
    assert isinstance(job, OpenJob | VaultJob) and job.salt == "pepper" and "pepper" not in repr(job)
    for wrong in ("", "x" * 257, 5):
        assert (await http.post(CHAT, json=chat_body(protection=level, cache_salt=wrong))).status_code == 400


@pytest.mark.parametrize("field", ["kv_transfer_params", "vllm_xargs"])
async def test_fields_that_steer_another_engine_go_no_further(
    http: httpx.AsyncClient, backend: FakeBackend, field: str
) -> None:
    for path, body in ((CHAT, chat_body()), ("/v1/completions", completion_body())):
        refused = await http.post(path, json={**body, "protection": "open", field: {"a": 1}})
        assert refused.status_code == 400 and field in refused.text
    assert not backend.submitted


async def test_only_a_private_end_forgets_what_the_service_keeps(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    assert (await http.delete("/v1/sessions/any")).status_code == 204 and not backend.forgotten
    assert (await http.delete("/v1/sessions/any?private=true")).status_code == 204
    assert backend.forgotten == ["development"]


async def test_at_shared_a_mark_only_narrows_what_a_detector_may_pass(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    """Without a mark it is shown all; with one, what was marked, and nothing from the first confidential part on."""
    turns = [{"role": "system", "content": "Be kind. " * 20}, {"role": "user", "content": "What of the heron?"}]
    shown = []
    for mark in ({}, {"public": True}, {"public": True, "content": "<confidential>Be</confidential> kind. "}):
        body = chat_body(protection="shared", messages=[turns[0] | mark, turns[1]])
        assert (await http.post(CHAT, json=body)).status_code == 200
        job = backend.submitted[-1].job
        assert isinstance(job, OpenJob) and len(job.text) == (job.ends[-1] if job.ends else 0)
        shown.append(job.text)
    assert "heron" in shown[0] and shown[0].startswith(shown[1])
    assert "kind" in shown[1] and "heron" not in shown[1]
    assert "kind" not in shown[2] and "heron" not in shown[2]
