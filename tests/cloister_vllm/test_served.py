"""`cloister serve --engine vllm` with the real vLLM and the real client, beside our own engine in fp32."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from cloister.audit.memory import Search, stopped
from cloister.models.source import find_model
from cloister.prompts.tokenizer import Tokenizer
from tests.cloister_vllm.real import WITH_VLLM
from tests.served import Server, running_server

pytestmark = [pytest.mark.slow, WITH_VLLM, pytest.mark.timeout(1800)]
MODEL = "SmolLM2-135M-Instruct"
COMMON = ("--dtype", "fp32", "--kv-cache-mib", "256", "--max-context", "1024")
LEVELS = ("open", "shared", "partitioned", "isolated")
PROMPTS = (
    "What is the capital of France?",
    "Count from one to ten.",
    "Write a short poem about the sea.",
    "Name three colours.",
)
SECRET = "The walrus Ferdinand hid nineteen turquoise umbrellas beneath the lighthouse of Dunmore."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    with running_server(
        log, "--engine", "vllm", "--allow-degraded-sandbox", "--link-deadline-ms", "30000", *COMMON
    ) as server:
        server.url(patience_s=1200)
        yield server


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with running_server(tmp_path_factory.mktemp("own") / "log", *COMMON) as server:
        yield client_of(server)


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url()}/v1", api_key="cloister-dev", max_retries=0)


def greedy(client: openai.OpenAI, question: str, level: str = "open", tokens: int = 32) -> list[str]:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=tokens,
        logprobs=True, extra_body={"protection": level},
    )  # fmt: skip
    scores = answer.choices[0].logprobs
    assert scores is not None and scores.content is not None
    return [one.token for one in scores.content]


@pytest.mark.parametrize("level", LEVELS)
def test_greedy_answers_in_fp32_are_our_own_engines(client: openai.OpenAI, own: openai.OpenAI, level: str) -> None:
    """By tolerance, not by promise: the two sum in other orders, so a near tie may fall to the other side."""
    theirs, ours = ([greedy(one, question, level) for question in PROMPTS] for one in (client, own))
    assert sum(one == other for one, other in zip(theirs, ours, strict=True)) >= len(PROMPTS) - 1
    assert "Paris" in "".join(theirs[0])


def test_private_sessions_beside_each_other_and_beside_open_ones_keep_their_answers(client: openai.OpenAI) -> None:
    """Each step has rows of several vaults, and rows of none: each row asks its vault."""
    asked = [(question, level) for level in ("partitioned", "open") for question in PROMPTS]
    alone = [greedy(client, *each, tokens=48) for each in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda each: greedy(client, *each, tokens=48), asked))
    assert sum(one == other for one, other in zip(alone, together, strict=True)) >= len(asked) - 1


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


@pytest.mark.parametrize("level", ["obfuscated", "mpc"])
def test_other_levels_are_refused(client: openai.OpenAI, level: str) -> None:
    with pytest.raises(openai.BadRequestError, match="not offered"):
        client.completions.create(model=MODEL, prompt="a", max_tokens=1, extra_body={"protection": level})


def test_a_form_is_refused_at_open_and_followed_by_the_vault_at_partitioned(client: openai.OpenAI) -> None:
    def form(level: str) -> str:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Give JSON."}], max_tokens=40, temperature=0,
            response_format={"type": "json_object"}, extra_body={"protection": level},
        )  # fmt: skip
        return answer.choices[0].message.content or ""

    with pytest.raises(openai.APIStatusError, match="does not serve it"):
        form("open")
    assert form("partitioned").lstrip().startswith("{")


def test_a_penalty_that_counts_the_first_token_is_refused_at_partitioned(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="presence_penalty"):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "a"}], max_tokens=4, presence_penalty=1.0,
            extra_body={"protection": "partitioned"},
        )  # fmt: skip


def engine_of(server: Server) -> psutil.Process:
    """Below its keeper: the process with threads."""
    below = [one for one in server.children() if "cloister_vllm.process" in " ".join(one.cmdline())]
    return max(below, key=psutil.Process.num_threads)


def test_the_engine_is_sealed(server: Server) -> None:
    [lacks] = [line for line in server.said.splitlines() if "sandbox lacks" in line]
    assert "seccomp" in lacks and not {"landlock", "empty_root", "pid_namespace", "closed_descriptors"} & set(
        lacks.replace(",", "").split()
    )
    place = Path(f"/proc/{engine_of(server).pid}")
    for thread in (place / "task").iterdir():
        status = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines())
        assert (status["NoNewPrivs"], int(status["CapEff"], 16), status["Seccomp"]) == ("1", 0, "2")
    assert os.listdir(place / "root") == [] and "PATH" not in (place / "environ").read_text()
    for kind in ("net", "pid", "mnt", "ipc", "uts", "user"):
        assert os.readlink(place / "ns" / kind) != os.readlink(f"/proc/self/ns/{kind}")
    opened = {os.readlink(one).split(":")[0] for one in (place / "fd").iterdir()}
    assert opened <= {"/dev/null", "socket", "pipe", "anon_inode"}, opened
    assert not psutil.Process(int(place.name)).children()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read another process's memory")
def test_of_a_private_prompt_the_engine_has_neither_words_nor_tokens(server: Server, client: openai.OpenAI) -> None:
    """While it decodes the answer. At `open` the same search finds them."""
    tokens = Tokenizer(find_model(None)).encode(" " + SECRET)[2:10]
    needles = {width: SECRET[4:40].encode(width) for width in ("utf-8", "utf-16-le", "utf-32-le")}
    needles |= {kind: struct.pack(f"<{len(tokens)}{kind}", *tokens) for kind in "iq"}
    engine = engine_of(server)

    def found(level: str) -> set[str]:
        asked = client.completions.create(
            model=MODEL, prompt=f"Read this: {SECRET} Then", max_tokens=400, stream=True, temperature=0,
            extra_body={"protection": level},
        )  # fmt: skip
        with closing(asked) as answer:
            for _, _ in zip(range(3), answer, strict=False):
                pass
            with stopped([server.process.pid, engine.pid]):  # the controller would end an engine that is stopped
                return {name for name, _, _ in Search(needles, tuple(tokens)).find(engine.pid)}

    assert found("partitioned") == set()
    assert found("open")


def test_a_killed_engine_fails_what_runs_and_is_back(server: Server, client: openai.OpenAI) -> None:
    before = engine_of(server)
    expected = greedy(client, PROMPTS[0], "partitioned")
    stream = client.completions.create(
        model=MODEL, prompt="On and on", max_tokens=500, stream=True, extra_body={"protection": "partitioned"}
    )
    next(iter(stream))
    os.kill(before.pid, signal.SIGKILL)
    with pytest.raises((openai.APIError, openai.APIConnectionError)):
        list(stream)
    end = time.monotonic() + 1200
    while True:
        try:
            assert greedy(client, PROMPTS[0], "partitioned") == expected
            break
        except openai.APIStatusError:
            assert time.monotonic() < end
            time.sleep(1)
    assert engine_of(server).pid != before.pid
