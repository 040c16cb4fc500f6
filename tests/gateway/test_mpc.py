"""The level `mpc` at the HTTP edge: what it is offered for, what it refuses, and how its progress is told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cloister.backend.base import VaultJob
from cloister.errors import StartingUp
from cloister.gateway.answer import comment
from cloister.levels import LEVELS as EVERY_LEVEL
from cloister.messages.generation import Progress, Tokens
from cloister.prompts.tokenizer import GenerationDefaults
from tests.gateway.fakes import LEVELS, ByteTokenizer, FakeBackend, chat_body, completion_body

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class SlowBackend(FakeBackend):
    """Tells how far it is before each token."""

    async def _stream(self, scored: Any, params: Any) -> Any:
        yield Tokens(1, progress=Progress(1, 0, 30))
        async for message in super()._stream(scored, params):
            yield message
            if message.finish is None:
                yield Tokens(1, progress=Progress(2, 7, 30, 3.21))


@pytest.fixture
def backend() -> FakeBackend:
    return SlowBackend((*LEVELS, "mpc"))


@pytest.fixture
def level() -> str:
    return "mpc"


async def test_served_like_any_level(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    response = await http.post(CHAT, json=chat_body())
    assert response.headers["X-Cloister-Protection"] == "mpc"
    assert response.json()["choices"][0]["message"]["content"] == backend.answer[: EVERY_LEVEL["mpc"].default_tokens]
    submitted = backend.submitted[0]
    assert isinstance(submitted.job, VaultJob) and submitted.job.level == "mpc"
    assert submitted.params.max_tokens == EVERY_LEVEL["mpc"].default_tokens and submitted.params.mpc_reveal == "token"


async def test_a_limit_of_ones_own_counts(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    await http.post(CHAT, json=chat_body(max_tokens=500))
    assert backend.submitted[0].params.max_tokens == 500


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
async def test_progress_is_a_comment_between_events(http: httpx.AsyncClient, path: str, body: Any) -> None:
    response = await http.post(path, json=body(stream=True, max_tokens=3))
    lines = [line for line in response.text.split("\n\n") if line]
    comments = [line for line in lines if line.startswith(":")]
    assert comments[0] == ": token 1, layer 0 of 30"
    assert comments[1:] == [": token 2, layer 7 of 30, about 3.2 s per token"] * 2
    assert all(line.startswith(("data: ", ":")) for line in lines) and lines[-1] == "data: [DONE]"


def test_the_estimate_is_not_of_the_first_token() -> None:
    assert comment(Progress(1, 1, 2, 12.0)).endswith(b"about 12 s per token after the first\n\n")
    assert comment(Progress(3, 1, 2, 104.0)).endswith(b"about 104 s per token\n\n")


def test_a_comment_is_one_line_that_readers_of_events_skip() -> None:
    line = comment(Progress(9, 1, 2, 12.0))
    assert line.startswith(b": ") and line.endswith(b"\n\n") and line.count(b"\n") == 2


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("top_p", 0.9),
        ("top_k", 5),
        ("min_p", 0.1),
        ("repetition_penalty", 1.2),
        ("logprobs", True),
    ],
)
async def test_what_needs_logits_needs_them_revealed(
    http: httpx.AsyncClient, backend: FakeBackend, param: str, value: Any
) -> None:
    refused = await http.post(CHAT, json=chat_body(**{param: value}))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
    assert not backend.submitted
    served = await http.post(CHAT, json=chat_body(**{param: value}, mpc_reveal="logits"))
    assert served.status_code == 200 and backend.submitted[0].params.mpc_reveal == "logits"


async def test_defaults_that_need_logits_are_not_taken(
    http: httpx.AsyncClient, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByteTokenizer, "generation", GenerationDefaults(temperature=0.6, top_p=0.9, top_k=20))
    body = chat_body()
    del body["temperature"]
    assert (await http.post(CHAT, json=body)).status_code == 200
    params = backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 1.0, 0)


async def test_what_can_be_had_on_shares(http: httpx.AsyncClient) -> None:
    """Bias and the penalties that add up are dealt with the noise, so they need no logits."""
    added = {"logit_bias": {"5": 1}, "presence_penalty": 1, "frequency_penalty": -1}
    neutral = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "logprobs": False}
    assert (await http.post(CHAT, json=chat_body(**neutral, **added))).status_code == 200


@pytest.mark.parametrize("other", LEVELS)
async def test_mpc_reveal_is_for_mpc_alone(http: httpx.AsyncClient, other: str) -> None:
    headers = {"X-Cloister-Protection": other}
    refused = await http.post(CHAT, json=chat_body(mpc_reveal="token"), headers=headers)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "mpc_reveal"


async def test_while_it_starts_clients_are_told_how_long(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.fails = lambda: StartingUp("The parties are being dealt the model.", retry_after=42)
    refused = await http.post(CHAT, json=chat_body(stream=True))
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "42")
    assert refused.json()["error"]["code"] == "starting_up"


async def test_a_server_without_it_says_how_to_have_it(http: httpx.AsyncClient, app: Any) -> None:
    from cloister.gateway.api import Levels

    object.__setattr__(app.state.api, "levels", Levels(LEVELS, {"mpc": "It was started with `--mpc off`."}))
    refused = await http.post(CHAT, json=chat_body())
    assert refused.json()["error"]["code"] == "protection_unavailable"
    assert refused.json()["error"]["message"].endswith("It was started with `--mpc off`.")
