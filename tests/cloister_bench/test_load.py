import asyncio
from collections.abc import AsyncIterator

import pytest

from cloister.addresses import HttpAddress
from cloister.errors import ServiceUnavailable, SetupError, Unauthorized
from cloister_bench.connection import first_model
from cloister_bench.load import RunReport, Workload, measure
from tests.cloister_bench.stub_server import (
    MODEL,
    STREAM_END,
    STREAM_HEAD,
    Request,
    Respond,
    Stub,
    error_response,
    event,
    json_response,
    models_response,
    openai_server,
    response,
    stub_server,
    text_event,
)

SMALL = Workload(input_tokens=12, output_tokens=10, requests_per_user=3, warmup=1, timeout_s=20.0)


def run(stub: Stub, load: Workload = SMALL, users: int = 2, key: str | None = "k") -> RunReport:
    return measure(HttpAddress.parse(stub.url), [key], MODEL, load, users)


def test_every_token_of_every_request_is_counted_and_the_warm_up_is_not() -> None:
    with stub_server(openai_server()) as stub:
        address = HttpAddress.parse(stub.url)
        report = measure(address, ["k"], MODEL, SMALL, 4)
    assert (report.output_tokens, report.errors) == (120, 0) and report.output_tokens_per_s > 0
    assert report.ttft_ms is not None and report.token_ms is not None
    assert len(stub.requests) == 16


def test_several_tokens_in_a_chunk_are_counted_from_usage() -> None:
    with stub_server(openai_server(tokens_per_chunk=4)) as stub:
        report = run(stub)
    assert report.output_tokens == 60


def test_prompts_are_exact_all_different_and_the_same_for_the_same_seed() -> None:
    def prompts(seed: int) -> list[tuple[int, ...]]:
        with stub_server(openai_server()) as stub:
            run(stub, Workload(input_tokens=12, output_tokens=2, requests_per_user=3, warmup=1, seed=seed))
        return sorted(tuple(request.body["prompt"]) for request in stub.requests)

    first, again, other = prompts(1), prompts(1), prompts(2)
    assert first == again and not set(first) & set(other)
    assert len(set(first)) == len(first) == 8
    assert all(len(each) == 12 and min(each) >= 1000 and max(each) < 20000 for each in first)


def test_requests_force_the_length_and_carry_the_key() -> None:
    with stub_server(openai_server()) as stub:
        run(stub, key="secret")
    request = stub.requests[0]
    assert request.path == "/v1/completions" and request.headers["authorization"] == "Bearer secret"
    wanted = {"model": MODEL, "max_tokens": 10, "temperature": 0, "ignore_eos": True, "stream": True}
    assert wanted.items() <= request.body.items()
    assert request.body["stream_options"] == {"include_usage": True}


def failing(*pieces: bytes, hang: bool = False) -> Respond:
    async def respond(request: Request) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if hang:
            await asyncio.sleep(3600)

    return respond


TOKEN = text_event("completions", "a")


@pytest.mark.parametrize(
    ("respond", "kind", "count"),
    [
        (failing(error_response("429 Too Many Requests", "queue full")), "HTTP 429", 6),
        (failing(error_response("500 Internal Server Error", "no")), "HTTP 500", 6),
        (failing(STREAM_HEAD + TOKEN, b""), "connection", 6),
        (failing(STREAM_HEAD + TOKEN + STREAM_END), "ended without [DONE]", 6),
        (failing(STREAM_HEAD + event({"error": {"message": "x"}}) + STREAM_END), "error in stream", 6),
        (failing(json_response({"choices": []})), "not a stream", 6),
        (failing(b"SSH-2.0-nothing\r\n\r\n"), "not HTTP", 6),
        (failing(b""), "connection", 6),
    ],
)
def test_failures_are_counted_by_kind(respond: Respond, kind: str, count: int) -> None:
    with stub_server(respond) as stub:
        report = run(stub)
    assert report.errors_by_kind == {kind: count}
    assert (report.errors, report.output_tokens, report.output_tokens_per_s) == (count, 0, 0.0)


@pytest.mark.parametrize("pieces", [(), (STREAM_HEAD,), (STREAM_HEAD + TOKEN,)])
def test_a_server_that_hangs_costs_one_timeout_for_each_user(pieces: tuple[bytes, ...]) -> None:
    load = Workload(input_tokens=2, output_tokens=2, requests_per_user=50, warmup=0, timeout_s=0.2)
    with stub_server(failing(*pieces, hang=True)) as stub:
        report = run(stub, load)
    assert report.errors_by_kind == {"timeout": 2}


def test_failures_among_successes_do_not_stop_a_user() -> None:
    honest = openai_server()
    turn = 0

    async def respond(request: Request) -> AsyncIterator[bytes]:
        nonlocal turn
        turn += 1
        if turn % 2:
            yield error_response("503 Service Unavailable", "later")
        else:
            async for piece in honest(request):
                yield piece

    with stub_server(respond) as stub:
        load = Workload(input_tokens=2, output_tokens=5, requests_per_user=6, warmup=0)
        report = run(stub, load, users=1)
    assert (report.errors_by_kind, report.output_tokens) == ({"HTTP 503": 3}, 15)


def test_the_first_model_is_the_default() -> None:
    with stub_server(failing(models_response())) as stub:
        assert (first_model(HttpAddress.parse(stub.url), None))["id"] == MODEL


@pytest.mark.parametrize(
    ("respond", "error"),
    [
        (failing(error_response("401 Unauthorized", "bad key")), Unauthorized),
        (failing(response("404 Not Found", b"<html>", "text/html")), SetupError),
        (failing(json_response({"data": []})), SetupError),
        (failing(json_response([1])), SetupError),
        (failing(b"SSH-2.0-nothing\r\n\r\n"), SetupError),
        (failing(hang=True), ServiceUnavailable),
    ],
)
def test_a_server_that_is_none_is_said_so(respond: Respond, error: type[Exception]) -> None:
    with stub_server(respond) as stub, pytest.raises(error):
        first_model(HttpAddress.parse(stub.url), "k", timeout_s=0.5)


def test_nobody_listening_is_said_so() -> None:
    with pytest.raises(ServiceUnavailable, match="cloister serve"):
        first_model(HttpAddress.parse("http://127.0.0.1:9"), None)
