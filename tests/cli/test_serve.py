import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.models.source import ModelFolder
from tests.cli.conftest import Run
from tests.served import Server, running_server


@pytest.fixture
def server(tmp_path: Path, smollm_folder: ModelFolder) -> Iterator[Server]:
    with running_server(tmp_path / "log", "--threads", "1", "--kv-cache-mib", "64") as server:
        yield server


@pytest.mark.slow
def test_serve_answers_chat_and_leaves_nothing_behind(server: Server, run: Run) -> None:
    url = server.url()
    answer = run("chat", "What is the capital of France?", "--url", url, "--temperature", "0", "--max-tokens", "12")
    assert answer.exit_code == 0 and "Paris" in answer.stdout
    assert run("chat", "Hi", "--url", url, "--api-key", "wrong").exit_code == 1
    assert run("chat", "Hi", "--url", url, "--protection", "mpc").exit_code == 2
    measured = run("bench", "serve", "--url", url, "--users", "2", "--requests-per-user", "1", "--output-tokens", "4")
    assert measured.exit_code == 0, measured.output

    children = server.children()
    assert server.stop() == 0
    assert not [child for child in children if child.is_running()]
    said = server.said
    assert "ready in" in said and "development key" in said and said.rstrip().endswith("Stopped.")
    assert "France" not in said and "Traceback" not in said


def test_the_development_key_stays_on_this_machine(run: Run) -> None:
    result = run("serve", "--host", "0.0.0.0")
    assert result.exit_code == 2 and "--keys" not in result.stdout and "cloister key new" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--model", "./no-such-model"), ("--keys", "no-such-file.toml"), ("--port", "70000"), ("--dtype", "int3")],
)
def test_wrong_settings_are_a_line_or_two(run: Run, arguments: tuple[str, ...]) -> None:
    result = run("serve", *arguments)
    assert result.exit_code in (1, 2) and result.stderr and "Traceback" not in result.output


@pytest.mark.slow
def test_a_taken_port_is_said_so(tmp_path: Path, smollm_folder: ModelFolder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = Server(tmp_path / "log", "--kv-cache-mib", "64", "--port", str(taken.getsockname()[1]))
        assert server.process.wait(120) == 2
    assert "Cannot listen" in server.said and "Traceback" not in server.said
