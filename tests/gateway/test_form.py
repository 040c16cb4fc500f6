"""What the answer must look like, on its way through the gateway: checked, with the parameters, where the gateway reads
the prompt; unread, with the prompt, where a vault does. Who chooses the tokens may see it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from cloister.backend.base import OpenJob, VaultJob
from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from cloister.levels import LEVELS as EVERY_LEVEL
from cloister.vault.reading import read_prompt
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer, FakeBackend, chat_body, completion_body

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASKED = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}}
FORM = {"json_schema": SCHEMA}


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(tuple(EVERY_LEVEL))


@pytest.mark.parametrize("level", ["open", "shared"])
async def test_where_the_gateway_reads_the_form_goes_with_the_parameters(
    http: httpx.AsyncClient, backend: FakeBackend, level: str
) -> None:
    answer = await http.post(CHAT, json=chat_body(protection=level, n=2, **ASKED))
    assert answer.is_success, answer.text
    assert [json.loads(each.params.grammar) for each in backend.submitted] == [FORM, FORM]
    assert isinstance(backend.submitted[0].job, OpenJob) and backend.submitted[0].job.level == level


@pytest.mark.parametrize("level", ["partitioned", "isolated", None])
@pytest.mark.parametrize(("path", "body", "asked"), [
    (CHAT, chat_body, ASKED),
    (COMPLETIONS, completion_body, {"guided_json": SCHEMA}),
    (COMPLETIONS, completion_body, {"structured_outputs": {"json": SCHEMA}}),
])  # fmt: skip
async def test_where_a_vault_reads_the_form_goes_with_the_prompt_alone(
    http: httpx.AsyncClient, backend: FakeBackend, level: str | None, path: str, body: Any, asked: dict[str, Any]
) -> None:
    answer = await http.post(path, json=body(protection=level, **asked))
    assert answer.is_success, answer.text
    assert answer.headers["X-Cloister-Protection"] == (level or "partitioned")
    [submitted] = backend.submitted
    assert isinstance(submitted.job, VaultJob) and submitted.job.level == "isolated"
    assert submitted.params.grammar == ""
    assert isinstance(submitted.job.prompt, bytes) and json.loads(read_prompt(submitted.job.prompt).form) == FORM


async def test_without_a_form_nothing_changes(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    await http.post(CHAT, json=chat_body(protection="partitioned", response_format={"type": "text"}, guided_json=None))
    [submitted] = backend.submitted
    assert isinstance(submitted.job, VaultJob) and submitted.job.level == "partitioned"
    assert isinstance(submitted.job.prompt, bytes) and read_prompt(submitted.job.prompt).form == ""


async def test_every_prompt_of_a_request_has_the_form(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    await http.post(COMPLETIONS, json=completion_body(prompt=["a", "b"], guided_regex="a+"))
    prompts = [read_prompt(each.job.prompt) for each in backend.submitted if isinstance(each.job.prompt, bytes)]
    assert [json.loads(prompt.form) for prompt in prompts] == [{"regex": "a+"}] * 2


async def test_a_verified_answer_with_a_form_is_decoded_by_its_vault(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    answer = await http.post(CHAT, json=chat_body(protection="open", verify=True, **ASKED))
    assert answer.headers["X-Cloister-Protection"] == "open"
    assert isinstance(backend.submitted[0].job, VaultJob) and backend.submitted[0].job.level == "isolated"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"protection": "mpc", **ASKED}, "response_format"),
        ({"protection": "partitioned", "stop_recitation": True, **ASKED}, "stop_recitation"),
        ({"response_format": {"type": "xqzwv"}}, "response_format"),
        ({"guided_regex": "xqzwv", **ASKED}, "guided_regex"),
        ({"guided_choice": "xqzwv"}, "guided_choice"),
        ({"structured_outputs": {"xqzwv": 1}}, "structured_outputs"),
        ({"protection": "open", "guided_regex": "(xqzwv"}, "response_format"),
        ({"protection": "open", "guided_json": {"pattern": "xqzwv{9999}"}}, "response_format"),
        ({"constrained": True}, "constrained"),
    ],
)
async def test_what_cannot_be_followed_is_refused_before_it_is_queued(
    http: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(CHAT, json=chat_body(**fields))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and "xqzwv" not in answer.text
    assert not backend.submitted


async def test_a_node_whose_vaults_do_not_decode_refuses_a_form(level: None) -> None:
    backend = FakeBackend(("open", "partitioned"))
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=KEY) as http:
        answer = await http.post(CHAT, json=chat_body(protection="partitioned", **ASKED))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "protection_unavailable", "response_format")
    assert not backend.submitted


async def test_parameters_show_no_form_when_they_are_printed(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    await http.post(CHAT, json=chat_body(protection="open", **ASKED))
    assert "name" in backend.submitted[0].params.grammar and "name" not in repr(backend.submitted[0])


def test_the_official_client_sends_what_is_read(url: str, backend: FakeBackend) -> None:
    backend.answer = '{"name": "a"}'
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="cloister-dev", max_retries=0)
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], temperature=0, **ASKED
    )
    assert json.loads(answer.choices[0].message.content or "") == {"name": "a"}
