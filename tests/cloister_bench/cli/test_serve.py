import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cloister_bench.stub_server import MODEL, Request, error_response, models_response, openai_server, stub_server

QUICK = ("--input-tokens", "5", "--output-tokens", "4", "--requests-per-user", "2", "--warmup", "0")


def test_numbers_table_and_plot(run: Run, tmp_path: Path) -> None:
    numbers, plot = tmp_path / "run.json", tmp_path / "run.png"
    with stub_server(openai_server()) as stub:
        files = ("--json", str(numbers), "--plot", str(plot))
        result = run("bench", "serve", "--url", stub.url, "--users", "1,3", *QUICK, *files)
    assert result.exit_code == 0, result.output
    document = json.loads(numbers.read_text())
    assert [each["users"] for each in document["runs"]] == [1, 3]
    assert [each["output_tokens"] for each in document["runs"]] == [8, 24]
    assert all(each["errors"] == 0 and each["output_tokens_per_s"] > 0 for each in document["runs"])
    assert (document["model"], document["url"], document["output_tokens"]) == (MODEL, stub.url, 4)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert MODEL in result.stdout and "output tokens/s" in result.stdout


def test_a_dash_prints_the_json_and_nothing_else(run: Run) -> None:
    with stub_server(openai_server()) as stub:
        result = run("bench", "serve", "--url", stub.url, "--users", "2", *QUICK, "--json", "-", "--model", "mine")
    document = json.loads(result.stdout)
    assert document["model"] == "mine" == stub.requests[-1].body["model"]


def test_a_server_that_answers_nothing_fails_the_command_and_says_why(run: Run, tmp_path: Path) -> None:
    async def respond(request: Request) -> AsyncIterator[bytes]:
        yield models_response() if request.method == "GET" else error_response("503 Service Unavailable", "no")

    numbers = tmp_path / "run.json"
    with stub_server(respond) as stub:
        result = run("bench", "serve", "--url", stub.url, "--users", "2", *QUICK, "--json", str(numbers))
    assert result.exit_code == 1 and "4 × HTTP 503" in result.stderr
    assert json.loads(numbers.read_text())["runs"][0]["errors"] == 4


def test_a_wrong_key_is_said_before_anything_is_measured(run: Run) -> None:
    async def respond(request: Request) -> AsyncIterator[bytes]:
        yield error_response("401 Unauthorized", "no")

    with stub_server(respond) as stub:
        result = run("bench", "serve", "--url", stub.url, "--api-key", "wrong")
    assert result.exit_code == 1 and "CLOISTER_API_KEY" in result.stderr and len(stub.requests) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--url", "nonsense"), 2),
        (("--url", "http://127.0.0.1:9"), 1),
        (("--users", "1,zero"), 2),
        (("--users", "0"), 2),
        (("--token-ids", "9-3"), 2),
        (("--endpoint", "song"), 2),
    ],
)
def test_wrong_use_is_a_line_or_two(run: Run, arguments: tuple[str, ...], code: int) -> None:
    result = run("bench", "serve", *arguments)
    assert result.exit_code == code and result.stderr and "Traceback" not in result.output


def test_the_level_asked_for_is_sent_and_recorded(run: Run, tmp_path: Path) -> None:
    numbers = tmp_path / "run.json"
    with stub_server(openai_server()) as stub:
        plain = run("bench", "serve", "--url", stub.url, "--users", "1", *QUICK, "--json", "-")
        level = run(
            "bench", "serve", "--url", stub.url, "--users", "1", *QUICK, "--protection", "open", "--json", str(numbers)
        )
    assert plain.exit_code == level.exit_code == 0
    asked = [request.body.get("protection", "nothing") for request in stub.requests if request.method == "POST"]
    assert asked == ["nothing", "nothing", "open", "open"]
    assert json.loads(plain.stdout)["protection"] is None
    assert json.loads(numbers.read_text())["protection"] == "open" and ", open" in level.stdout
    assert not any("session" in request.body for request in stub.requests)
