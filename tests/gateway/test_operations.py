from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from cloister.config import GatewaySettings
from cloister.errors import ServiceUnavailable
from cloister.gateway.app import create_app
from cloister.keys import key_line
from tests.gateway.fakes import KEY, MODEL, WIDTH, ByteTokenizer, FakeBackend, chat_body, completion_body


async def values(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    text = (await http.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


async def test_health_needs_no_key_and_tells_the_truth(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    http.headers.pop("authorization")
    response = await http.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    backend.up = False
    assert (await http.get("/health")).status_code == 503, "a controller without a service serves nobody"
    backend.stats_fail = ServiceUnavailable("Away.")
    response = await http.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "service_unavailable" and "retry-after" in response.headers


async def test_health_is_that_of_the_default_level(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    """What a request gets that names no level: other levels may be served, or not."""
    backend.levels_now = ("open", "isolated")
    response = await http.get("/health")
    assert response.status_code == 503 and "retry-after" in response.headers
    error = response.json()["error"]
    assert error["code"] == "service_unavailable" and "'partitioned'" in error["message"]
    backend.levels_now = ("partitioned",)
    assert (await http.get("/health")).status_code == 200


async def test_models(http: httpx.AsyncClient) -> None:
    levels = (await http.get("/api/page")).json()["levels"]
    assert [level["id"] for level in levels if level["enabled"]] == ["open", "partitioned", "isolated"]
    model = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "cloister", "max_model_len": 2048}
    model |= {
        "protection": levels,
        "missing_layers": ["memory_lock"],
        "embeddings": {"dimensions": WIDTH, "pooling": "last"},
    }
    assert (await http.get("/v1/models")).json() == {"object": "list", "data": [model]}
    assert (await http.get(f"/v1/models/{MODEL}")).json() == model
    assert (await http.get("/v1/models/other")).json()["error"]["code"] == "model_not_found"


async def test_metrics_count_what_happened(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    await http.post("/v1/chat/completions", json=chat_body(stream=True))
    await http.post("/v1/completions", json=completion_body(max_tokens=4, protection="open"))
    await http.post("/v1/completions", json=completion_body(prompt=""))
    await http.get("/some/path/a/user/typed")
    seen = await values(http)
    assert seen["cloister_requests_total", "/v1/chat/completions", "2xx"] == 1
    assert seen["cloister_requests_total", "/v1/completions", "2xx"] == 1
    assert seen["cloister_requests_total", "/v1/completions", "4xx"] == 1
    assert seen["cloister_requests_total", "other", "4xx"] == 1
    assert seen["cloister_generations_total", "partitioned"] == 1
    assert seen["cloister_generations_total", "open"] == 1
    assert seen["cloister_vaults",] == 2
    assert seen["cloister_prompt_tokens_total",] == len("<user>Hi<assistant>") + len("Once")
    assert seen["cloister_output_tokens_total",] == len(backend.answer) + 1 + 4
    assert seen["cloister_time_to_first_token_seconds_count",] == 2
    assert seen["cloister_inter_token_seconds_count",] > 10
    assert (seen["cloister_running",], seen["cloister_waiting",]) == (0, 3)
    assert (seen["cloister_kv_blocks_used",], seen["cloister_kv_blocks_total",]) == (28, 128)


async def test_metrics_outlive_the_service(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.stats_fail = ServiceUnavailable("Away.")
    assert "cloister_running NaN" in (await http.get("/metrics")).text


async def test_metrics_name_no_tenant(http: httpx.AsyncClient) -> None:
    await http.post("/v1/chat/completions", json=chat_body())
    text = (await http.get("/metrics")).text
    assert "development" not in text and "tenant" not in text


async def test_metrics_tell_what_the_prefix_cache_did_by_policy(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    seen = await values(http)
    assert [seen[f"cloister_prefix_{name}_total", "counted"] for name in ("hits", "misses", "tokens_reused")] == [
        120,
        30,
        4321,
    ]
    assert seen["cloister_prefix_evictions_total",] == 250
    backend.up = False
    assert not any(name[0].startswith("cloister_prefix") for name in await values(http))


async def test_metrics_need_a_key_wherever_one_asks_from(app: FastAPI) -> None:
    for peer, headers, status in (
        ("127.0.0.1", {}, 401),
        ("127.0.0.1", {"Authorization": "Bearer no"}, 401),
        ("127.0.0.1", KEY, 200),
        ("10.0.0.9", {}, 401),
        ("10.0.0.9", KEY, 200),
    ):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=(peer, 1)), base_url="http://localhost"
        ) as http:
            assert (await http.get("/metrics", headers=headers)).status_code == status


async def test_metrics_are_for_operators_and_coarse_where_there_are_tenants(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant that watched the totals would see how long each request of another is, and when it came."""
    lines = [key_line("ann", "ann"), key_line("ops", "ops", operator=True)]
    (tmp_path / "keys").write_text("[keys]\n" + "\n".join(lines))
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(keys_file=tmp_path / "keys"), created=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        http.headers["Authorization"] = "Bearer ann"
        refused = await http.get("/metrics")
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "insufficient_permissions"
        assert "--operator" in refused.json()["error"]["message"] and "WWW-Authenticate" not in refused.headers
        await http.post("/v1/chat/completions", json=chat_body())
        http.headers["Authorization"] = "Bearer ops"
        seen = await values(http)
        assert seen["cloister_output_tokens_total",] == seen["cloister_prompt_tokens_total",] == 0
        assert seen["cloister_kv_blocks_used",] == 32, "28 of 128, to the next sixteenth"
        assert seen["cloister_prefix_hits_total", "counted"] == 100 and seen["cloister_prefix_evictions_total",] == 200
        assert seen["cloister_prefix_misses_total", "counted"] == 0
        assert seen["cloister_prefix_tokens_reused_total", "counted"] == 4000
        text = (await http.get("/metrics")).text
        await http.post("/v1/chat/completions", json=chat_body())
        assert (await http.get("/metrics")).text == text, "it changed within seconds"
        monkeypatch.setattr(app.state.api.metrics, "_kept_s", 0.0)
        assert (await http.get("/metrics")).text != text


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("attacker.example:8000", 403), ("[::2]", 403)],
)
async def test_a_rebound_name_does_not_reach_the_development_server(
    http: httpx.AsyncClient, host: str, status: int
) -> None:
    answer = await http.get("/v1/models", headers={"Host": host})
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["code"] == "foreign_host"
