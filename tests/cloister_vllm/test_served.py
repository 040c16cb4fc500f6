"""`cloister serve --engine vllm` with the real vLLM and the real client, beside our own engine in fp32."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.cloister_vllm.real import WITH_VLLM
from tests.served import Server, is_confined, running_server

pytestmark = [pytest.mark.slow, WITH_VLLM, pytest.mark.timeout(900)]
MODEL = "SmolLM2-135M-Instruct"
COMMON = ("--dtype", "fp32", "--kv-cache-mib", "256", "--max-context", "1024")
PROMPTS = (
    "What is the capital of France?",
    "Count from one to ten.",
    "Write a short poem about the sea.",
    "Name three colours.",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    with running_server(log, "--engine", "vllm", "--allow-degraded-sandbox", *COMMON) as server:
        server.url(patience_s=600)
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url()}/v1", api_key="cloister-dev", max_retries=0)


def greedy(client: openai.OpenAI, question: str, tokens: int = 32) -> list[str]:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=tokens,
        logprobs=True, extra_body={"protection": "open"},
    )  # fmt: skip
    scores = answer.choices[0].logprobs
    assert scores is not None and scores.content is not None
    return [one.token for one in scores.content]


def test_greedy_answers_in_fp32_are_our_own_engines(
    client: openai.OpenAI, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By tolerance, not by promise: the two sum in other orders, so a near tie may fall to the other side."""
    theirs = [greedy(client, question) for question in PROMPTS]
    with running_server(tmp_path_factory.mktemp("own") / "log", *COMMON) as own:
        ours = [greedy(client_of(own), question) for question in PROMPTS]
    assert sum(one == other for one, other in zip(theirs, ours, strict=True)) >= len(PROMPTS) - 1
    assert "Paris" in "".join(theirs[0])


def test_a_stream_a_stop_and_a_seed_work(client: openai.OpenAI) -> None:
    def said(**more: Any) -> str:
        parts = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": PROMPTS[1]}], max_tokens=24, stream=True,
            extra_body={"protection": "open"}, **more,
        )  # fmt: skip
        return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)

    assert said(seed=7) == said(seed=7) != said(seed=8)
    assert said(temperature=0, stop=[" "]) and " " not in said(temperature=0, stop=[" "])


@pytest.mark.parametrize("field", ["kv_transfer_params", "vllm_xargs"])
def test_fields_that_steer_vllm_are_refused(client: openai.OpenAI, field: str) -> None:
    with pytest.raises(openai.BadRequestError, match=field):
        client.completions.create(model=MODEL, prompt="a", max_tokens=1, extra_body={"protection": "open", field: {}})


@pytest.mark.parametrize("level", ["shared", "partitioned", "obfuscated", "isolated", "mpc", None])
def test_every_other_level_is_refused(client: openai.OpenAI, level: str | None) -> None:
    body = {} if level is None else {"protection": level}
    with pytest.raises(openai.BadRequestError, match="open"):
        client.completions.create(model=MODEL, prompt="a", max_tokens=1, extra_body=body)


def test_a_form_is_refused_with_the_reason(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="does not serve it"):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "a"}], max_tokens=1,
            response_format={"type": "json_object"}, extra_body={"protection": "open"},
        )  # fmt: skip


def test_the_engine_has_no_powers_and_a_network_alone(server: Server) -> None:
    [engine] = [one for one in server.children() if "cloister_vllm.process" in " ".join(one.cmdline())]
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{engine.pid}/status").read_text().splitlines())
    assert (status["NoNewPrivs"], int(status["CapEff"], 16)) == ("1", 0) and not is_confined(engine)
    mine, its = (os.readlink(f"/proc/{pid}/ns/net") for pid in (os.getpid(), engine.pid))
    assert mine != its and not list(psutil.Process(engine.pid).children())
