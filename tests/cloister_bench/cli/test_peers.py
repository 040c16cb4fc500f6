import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloister_bench.peers import server_of
from cloister_bench.servers import ServerProcess
from tests.cli.conftest import Run
from tests.cloister_bench.stub_server import MODEL, Request, error_response, models_response, openai_server, stub_server

QUICK = ("--input-tokens", "5", "--output-tokens", "4", "--requests-per-user", "2")


def test_two_servers_are_compared_round_by_round(run: Run, tmp_path: Path) -> None:
    numbers, plots = tmp_path / "run.json", tmp_path / "plots"
    with stub_server(openai_server()) as base, stub_server(openai_server()) as other:
        servers = ("--server", f"base={base.url}", "--server", other.url)
        files = ("--json", str(numbers), "--plot-dir", str(plots))
        result = run("bench", "peers", *servers, "--users", "1,3", "--rounds", "2", *QUICK, *files)
    assert result.exit_code == 0, result.output
    document = json.loads(numbers.read_text())
    name = other.url.removeprefix("http://")
    assert [(each["side"], each["users"]) for each in document["runs"]] == [
        ("base", 1),
        (name, 1),
        ("base", 3),
        (name, 3),
    ]
    assert all(each["errors"] == 0 and each["tokens_per_s"] > 0 for each in document["runs"])
    assert document["runs"][0]["ratio"] == 1.0 and document["runs"][1]["ratio"] > 0
    assert (plots / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert "tokens/s" in result.stdout and stub_model(base.requests) == stub_model(other.requests) == {MODEL}


def stub_model(requests: list[Request]) -> set[str]:
    return {request.body["model"] for request in requests if request.method == "POST"}


def test_a_dash_prints_the_json_and_nothing_else(run: Run) -> None:
    with stub_server(openai_server()) as stub:
        result = run("bench", "peers", "--server", f"mine={stub.url}", "--users", "2", *QUICK, "--json", "-")
    assert json.loads(result.stdout)["base"] == "mine"


def test_a_server_that_answers_nothing_fails_the_command_and_says_why(run: Run, tmp_path: Path) -> None:
    async def respond(request: Request) -> AsyncIterator[bytes]:
        yield models_response() if request.method == "GET" else error_response("503 Service Unavailable", "no")

    with stub_server(respond) as stub:
        result = run("bench", "peers", "--server", stub.url, "--users", "2", *QUICK)
    assert result.exit_code == 1 and "4 × HTTP 503" in result.stderr


def test_a_wrong_key_is_said_before_anything_is_measured(run: Run) -> None:
    async def respond(request: Request) -> AsyncIterator[bytes]:
        yield error_response("401 Unauthorized", "no")

    with stub_server(respond) as stub:
        result = run("bench", "peers", "--server", stub.url, key="wrong")
    assert result.exit_code == 1 and "CLOISTER_API_KEY" in result.stderr and len(stub.requests) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--server", "http://"), 2),
        (("--server", "http://127.0.0.1:9"), 1),
        (("--server", "peer=/nowhere/at/all --port {port}"), 2),
        (("--users", "1,zero"), 2),
        (("--users", "0"), 2),
    ],
)
def test_wrong_use_is_a_line_or_two(run: Run, arguments: tuple[str, ...], code: int) -> None:
    result = run("bench", "peers", *arguments)
    assert result.exit_code == code and result.stderr and "Traceback" not in result.output


def test_levels_are_asked_of_servers_that_have_them_and_of_no_others(run: Run) -> None:
    async def ours(request: Request) -> AsyncIterator[bytes]:
        if request.method == "GET":
            yield models_response(protection=[{"id": "open", "enabled": True}])
        else:
            async for piece in openai_server()(request):
                yield piece

    with stub_server(ours) as stub, stub_server(openai_server()) as peer:
        servers = ("--server", f"ours={stub.url}", "--server", f"peer={peer.url}", "--users", "1", *QUICK)
        result = run("bench", "peers", *servers, "--levels", "open,partitioned+session", "--json", "-")
    assert [one["side"] for one in json.loads(result.stdout)["runs"]] == [
        "ours open",
        "ours partitioned+session",
        "peer",
    ]
    asked = [request.body for request in stub.requests if request.method == "POST"]
    assert [one["protection"] for one in asked] == ["open"] * 3 + ["partitioned"] * 3
    assert ["session" in one for one in asked] == [False] * 3 + [True] * 3
    assert not any("protection" in request.body or "session" in request.body for request in peer.requests)


def test_a_server_is_an_address_or_a_command_with_a_port() -> None:
    named, plain = server_of("a=http://h:1/v1", None), server_of("http://h:1/x=1", None)
    assert (named.name, named.address.port, plain.name) == ("a", 1, "h:1")
    started = server_of("b=env A=1 serve --port {port}", "k")
    assert isinstance(started, ServerProcess) and started.name == "b" and started.api_key == "k"
    assert started._command == ["env", "A=1", "serve", "--port", str(started.address.port)]
    started.log.parent.rmdir()
