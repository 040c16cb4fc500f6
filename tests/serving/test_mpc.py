"""The level `mpc` whole: `cloister serve` with three party processes of its own, and the official client.

A small random model, whose words say nothing; before a release also the default one, whose answer on shares must be the
plain one. That small models answer the same on shares is tested in tests/cloister_mpc.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from tests.forkserver.model import save_model
from tests.served import Server, running_server

pytest.importorskip("spu", reason="SPU is not installed: make mpc")

NEEDED_BYTES = 10e9
TOKENS = 4
SMALL = ("--dtype", "fp32", "--kv-cache-mib", "16", "--vault-kv-mib", "16", "--spare-vaults", "1")
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
GREETING = [{"role": "user", "content": "Hi"}]
PATIENCE_S = 1500

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]


@pytest.fixture(scope="module", params=["small", pytest.param("real", marks=pytest.mark.release)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mpc")
    if request.param == "small":
        model = ("--model", str(save_model(folder / "model", layers=1).path), *SMALL)
    elif psutil.virtual_memory().available < NEEDED_BYTES:
        pytest.skip("three parties and a server take about 10 GB of memory, and less is free")
    else:
        model = ()
    with running_server(folder / "log", "--mpc", "local", "--request-timeout", str(PATIENCE_S), *model) as server:
        server.url()
        yield server


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url()}/v1", api_key="cloister-dev", max_retries=0, timeout=PATIENCE_S)


def test_the_official_client_streams_a_correct_answer_from_three_parties(
    client: openai.OpenAI, server: Server, tmp_path: Path
) -> None:
    model = client.models.list().data[0].id
    real = model.startswith("SmolLM2")  # a token of the small model is a byte
    asked = {"model": model, "messages": QUESTION if real else GREETING, "temperature": 0, "max_tokens": TOKENS}
    plain = client.chat.completions.create(**asked, extra_body={"protection": "open"}).choices[0].message.content

    stream = when_up(client, asked)
    parties = [one for one in server.children() if "cloister_mpc.party.engine" in " ".join(one.cmdline())]
    assert len({one.pid for one in parties}) == 3  # each its own process
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 1  # they came one by one
    if real:  # what is evicted of the cache decides nothing there; of random weights it may
        assert plain and "".join(pieces) == plain
    assert stream.response.headers["X-Cloister-Protection"] == "mpc"

    everyone = server.children()
    assert server.stop() == 0
    _, alive = psutil.wait_procs(everyone, timeout=30)
    assert not alive


def when_up(client: openai.OpenAI, asked: dict[str, object]) -> openai.Stream[object]:
    """While parties start and are dealt the model, a request is told so, and when to come back."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return client.chat.completions.create(**asked, stream=True, extra_body={"protection": "mpc"})
        except openai.InternalServerError as refused:
            assert refused.status_code == 503 and refused.code == "starting_up", refused
            assert int(refused.response.headers["Retry-After"]) >= 1
            assert time.monotonic() < end, "the parties are not up"
            time.sleep(2)
