import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cloister.addresses import HttpAddress
from cloister.cli.chat import _print_answer
from cloister.cli.conversation import Conversation
from cloister.cli.options import without_control_characters
from cloister.config import DEVELOPMENT_KEY
from tests.cli.conftest import Run
from tests.client.fake_node import KEY, FakeNode, release_in, running
from tests.client.fake_node import MODEL as NODE_MODEL
from tests.client.http_server import Received, Reply, reply
from tests.cloister_bench.stub_server import (
    MODEL,
    STREAM_END,
    STREAM_HEAD,
    Request,
    Respond,
    chunk,
    error_response,
    event,
    json_response,
    models_response,
    openai_server,
    response,
    stub_server,
    text_event,
)

PLAIN = "--insecure-plaintext"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's memory of logs, the test's own."""
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with running(FakeNode(release_in(tmp_path / "log"))) as node:
        yield node


SEALED = ("--allow-software-tee",)


def test_a_question_goes_sealed_to_a_verified_node(run: Run, node: FakeNode) -> None:
    result = run("chat", "a private question", "--url", node.url, *SEALED, key=KEY)
    assert (result.exit_code, result.stdout) == (0, "so it is \n")
    assert result.stderr.count("\n") == 1 and "software TEE" in result.stderr
    asked = node.opened[-1]
    assert asked.prompts == [[{"role": "user", "content": "a private question"}]]
    assert asked.body == {"model": NODE_MODEL, "messages": {"sealed": 1}, "temperature": 0.2, "stream": True}
    assert not node.in_the_clear
    assert {each.path for each in node.server.received} == {"/v1/evidence", "/v1/sealed"}


def test_json_and_a_conversation_go_sealed_too(run: Run, node: FakeNode) -> None:
    result = run("chat", "Is it?", "--url", node.url, "--json", *SEALED, key=KEY)
    assert json.loads(result.stdout)["content"] == "so it is "
    result = run("chat", "--url", node.url, *SEALED, stdin="one\ntwo\n", key=KEY)
    assert result.exit_code == 0 and result.stdout == "so it is \nso it is \n"
    assert [each["content"] for each in node.opened[-1].prompts[0]] == ["one", "so it is ", "two"]
    sessions = {each.headers["x-cloister-session"] for each in node.opened[-2:]}
    assert len(sessions) == 1 and not node.in_the_clear


@pytest.mark.parametrize("style", [(), ("--json",)])
def test_without_the_flag_a_development_node_is_told_nothing(run: Run, node: FakeNode, style: tuple[str, ...]) -> None:
    result = run("chat", "my secret", "--url", node.url, *style, key=KEY)
    assert result.exit_code == 1 and result.stdout == ""
    assert "software tee" in result.stderr and "--allow-software-tee" in result.stderr
    assert [each.path for each in node.server.received] == ["/v1/evidence"] and "my secret" not in result.stderr


def test_a_policy_file_decides(run: Run, node: FakeNode, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('measurements = ["' + "00" * 32 + '"]')
    result = run("chat", "Hi", "--url", node.url, "--policy", str(policy), *SEALED, key=KEY)
    assert result.exit_code == 1 and "release" in result.stderr and not node.opened


def test_a_server_that_is_no_node_is_told_nothing(run: Run) -> None:
    with stub_server(everything(response("404 Not Found", b"{}"))) as stub:
        result = run("chat", "my secret", "--url", stub.url, "--allow-software-tee")
    assert result.exit_code == 1 and "not verified" in result.stderr
    assert [each.path for each in stub.requests] == ["/v1/evidence"]


def test_a_refused_key_and_a_broken_answer_are_lines_not_tracebacks(run: Run, node: FakeNode) -> None:
    result = run("chat", "my secret", "--url", node.url, "--allow-software-tee", key="wrong")
    assert result.exit_code == 1 and "refuses the API key" in result.stderr

    async def nothing(received: Received) -> Reply:
        return reply(200, b"believe me")

    node.sealed = nothing  # type: ignore[method-assign]
    result = run("chat", "my secret", "--url", node.url, "--model", "m", *SEALED, key=KEY)
    assert result.exit_code == 1 and "without a seal" in result.stderr
    assert "believe me" not in result.output and "my secret" not in result.output


def test_a_node_that_waits_for_its_weights_key_is_said_to(run: Run, node: FakeNode) -> None:
    async def waiting(received: Received) -> Reply:
        return reply(503, b'{"error": {"message": "send me all", "code": "waiting_for_key"}}')

    node.sealed = waiting  # type: ignore[method-assign]
    result = run("chat", "my secret", "--url", node.url, *SEALED, key=KEY)
    assert result.exit_code == 1 and "waits for the key of its weights" in result.stderr
    assert "weights release" in result.stderr and "send me all" not in result.stderr


class Sleeps:
    """Waits for nothing, and remembers for how long it should have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[float] = []
        monkeypatch.setattr("cloister.cli.conversation.time.sleep", self.all.append)


def starting(after: str) -> bytes:
    body = b'{"error": {"message": "The parties\\nare being started.", "code": "starting_up"}}'
    return response(f"503 Service Unavailable\r\nRetry-After: {after}", body)


@pytest.mark.parametrize("style", [(), ("--json",)])
def test_what_is_being_started_is_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch, style: tuple[str, ...]) -> None:
    """As the first request for `mpc` finds it; it is said once, and the seconds are the server's, within reason."""
    sleeps, left = Sleeps(monkeypatch), ["7", "0", "99999", "soon", "1" * 30]
    answers = openai_server(answer="so ")

    async def server(asked: Request) -> AsyncIterator[bytes]:
        if asked.path.endswith("/completions") and left:
            yield starting(left.pop(0))
            return
        async for part in answers(asked):
            yield part

    with stub_server(server) as stub:
        result = run("chat", "Is it?", PLAIN, "--url", stub.url, "--max-tokens", "2", *style)
    assert result.exit_code == 0 and "so so" in result.stdout and sleeps.all == [7, 1, 15, 1, 1]
    assert result.stderr.count("The parties are being started. Waiting for it") == 1


def test_it_is_not_waited_for_for_ever_nor_is_anything_else(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = Sleeps(monkeypatch)
    with stub_server(everything(starting("15"))) as stub:
        result = run("chat", "Is it?", PLAIN, "--url", stub.url, "--model", "m")
    assert result.exit_code == 1 and "are being started" in result.stderr and sum(sleeps.all) == 600
    for body in (b'{"error": {"message": "gone", "code": "service_unavailable"}}', b'["starting_up"]', b"starting_up"):
        with stub_server(everything(response("503 Service Unavailable", body))) as stub:
            assert run("chat", "Is it?", PLAIN, "--url", stub.url, "--model", "m").exit_code != 0
    assert sum(sleeps.all) == 600


def test_an_answer_is_streamed_to_the_terminal(run: Run) -> None:
    with stub_server(openai_server(answer="so ")) as stub:
        result = run(
            "chat", "Is it?", PLAIN, "--url", stub.url, "--max-tokens", "3", "--temperature", "0", "--seed", "7"
        )
    assert (result.exit_code, result.stdout) == (0, "so so so \n")
    asked = stub.requests[-1]
    assert asked.headers["authorization"] == f"Bearer {DEVELOPMENT_KEY}"
    assert asked.body == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Is it?"}],
        "max_tokens": 3,
        "temperature": 0.0,
        "seed": 7,
        "stream": True,
    }


def test_system_prompt_protection_and_key_reach_the_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_API_KEY", "from-the-environment")
    with stub_server(openai_server()) as stub:
        run(
            "chat",
            "Hi",
            PLAIN,
            "--url",
            f"{stub.url}/v1",
            "--system",
            "Be brief.",
            "--protection",
            "open",
            "--model",
            "m",
        )
    (asked,) = stub.requests
    assert asked.headers["authorization"] == "Bearer from-the-environment"
    assert asked.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (asked.body["protection"], asked.body["model"]) == ("open", "m")


def cloister_server(honest: Respond, level: str) -> Respond:
    """The honest server, saying what Cloister says in headers."""

    async def respond(request: Request) -> AsyncIterator[bytes]:
        if request.method == "DELETE":
            yield b"HTTP/1.1 204 No Content\r\n\r\n"
            return
        async for piece in honest(request):
            session = request.headers.get("x-cloister-session", "")
            said = f"\r\nX-Cloister-Protection: {level}\r\n" + (f"X-Cloister-Session: {session}\r\n" if session else "")
            head = piece.startswith(b"HTTP/1.1 200") and request.method == "POST"
            yield piece.replace(b"\r\n", said.encode(), 1) if head else piece

    return respond


def test_a_conversation_is_one_session_ended_with_it(run: Run) -> None:
    sessions = []
    for _ in range(2):
        with stub_server(cloister_server(openai_server(answer="so "), "partitioned")) as stub:
            result = run(
                "chat", PLAIN, "--url", stub.url, "--max-tokens", "1", "--protection", "partitioned", stdin="a\nb\n"
            )
        assert result.exit_code == 0 and result.stdout == "so \nso \n"
        *turns, last = [each for each in stub.requests if each.path != "/v1/models"]
        assert [turn.body["protection"] for turn in turns] == ["partitioned"] * 2
        (session,) = {turn.headers["x-cloister-session"] for turn in turns}
        assert (last.method, last.path) == ("DELETE", f"/v1/sessions/{session}")
        sessions.append(session)
    assert sessions[0] != sessions[1] and len(sessions[0]) == 32


def test_another_server_is_not_told_to_forget_sessions_it_never_had(run: Run) -> None:
    with stub_server(openai_server()) as stub:
        run("chat", "Hi", PLAIN, "--url", stub.url)
    assert {each.method for each in stub.requests} == {"GET", "POST"}


@pytest.mark.parametrize("style", [(), ("--json",)])
@pytest.mark.parametrize("level", ["partitioned", None])
def test_a_server_that_ignores_the_level_is_not_taken_at_its_word(
    run: Run, level: str | None, style: tuple[str, ...]
) -> None:
    honest = openai_server(answer="so ")
    with stub_server(cloister_server(honest, level) if level else honest) as stub:
        result = run("chat", "Hi", PLAIN, "--url", stub.url, "--protection", "isolated", *style)
    assert result.exit_code == 2 and "did not serve at the level" in result.stderr
    assert result.stdout == ""


def test_json_is_one_document(run: Run) -> None:
    with stub_server(openai_server(answer="so ")) as stub:
        result = run("chat", "Is it?", PLAIN, "--url", stub.url, "--max-tokens", "2", "--json")
    assert json.loads(result.stdout) == {
        "model": MODEL,
        "content": "so so ",
        "finish_reason": "length",
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
    }


def test_a_dash_reads_the_prompt_from_standard_input_of_a_real_process() -> None:
    with stub_server(openai_server(answer="so ")) as stub:
        command = [sys.executable, "-m", "cloister", "chat", "-", PLAIN, "--url", stub.url, "--max-tokens", "1"]
        done = subprocess.run(command, input="a private question\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "so \n", "")
    assert stub.requests[-1].body["messages"] == [{"role": "user", "content": "a private question"}]


def test_a_conversation_remembers_what_was_said(run: Run) -> None:
    with stub_server(openai_server(answer="so ")) as stub:
        result = run("chat", PLAIN, "--url", stub.url, "--max-tokens", "1", stdin="one\n\ntwo\n")
    assert result.exit_code == 0 and result.stdout == "so \nso \n"
    assert [each["content"] for each in stub.requests[-1].body["messages"]] == ["one", "so ", "two"]


def test_how_far_a_slow_answer_is_shows_until_there_are_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        on_progress: Callable[[str], None]

        def ask(self, prompt: str) -> Iterator[str]:
            self.on_progress("token 1, layer 2 of 30\x1b[2J" + "x" * 200)
            yield "Paris"

    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        _print_answer(Slow(), "?")  # type: ignore[arg-type]
        said = capsys.readouterr()
        assert said.out == "Paris\n" and "\x1b[2J" not in said.err
        assert ("token 1, layer 2 of 30" in said.err) is terminal
        assert said.err.endswith("\r\x1b[K") is terminal


def test_progress_is_heard_and_is_no_part_of_the_answer(run: Run) -> None:
    honest = openai_server(answer="so ")

    async def respond(request: Request) -> AsyncIterator[bytes]:
        async for piece in honest(request):
            yield piece
            if piece == STREAM_HEAD:
                yield chunk(b": token 1, layer 2 of 30\n\n")

    heard: list[str] = []
    with (
        stub_server(respond) as stub,
        Conversation(HttpAddress.parse(stub.url), "key", choices={"max_tokens": 1}) as conversation,
    ):
        conversation.on_progress = heard.append
        assert "".join(conversation.ask("?")) == "so " and heard == ["token 1, layer 2 of 30"]


def test_commands_do_not_go_to_the_model(run: Run) -> None:
    said = "one\n/help\n/helo there\n//etc\n/clear\ntwo\n/bye\nthree\n"
    with stub_server(cloister_server(openai_server(answer="so "), "partitioned")) as stub:
        result = run("chat", PLAIN, "--url", stub.url, "--max-tokens", "1", "--system", "be", stdin=said)
    assert result.exit_code == 0 and result.stdout == "so \nso \nso \n"
    assert "/clear" in result.stderr and "no command /helo" in result.stderr
    turns = [each for each in stub.requests if each.method == "POST"]
    asked = [[message["content"] for message in each.body["messages"]] for each in turns]
    assert asked == [["be", "one"], ["be", "one", "so ", "/etc"], ["be", "two"]]
    sessions = [each.headers["x-cloister-session"] for each in turns]
    assert sessions[0] == sessions[1] != sessions[2]
    assert [each.path for each in stub.requests if each.method == "DELETE"] == [
        f"/v1/sessions/{sessions[0]}",
        f"/v1/sessions/{sessions[2]}",
    ]


def test_a_refused_turn_does_not_end_the_conversation(run: Run) -> None:
    honest, turns = openai_server(answer="so "), 0

    async def respond(request: Request) -> AsyncIterator[bytes]:
        nonlocal turns
        turns += request.method == "POST"
        if turns == 1 and request.method == "POST":
            yield error_response("429 Too Many Requests", "The queue is full.")
            return
        async for piece in honest(request):
            yield piece

    with stub_server(respond) as stub:
        result = run("chat", PLAIN, "--url", stub.url, "--max-tokens", "1", stdin="one\ntwo\n")
    assert "The queue is full." in result.stderr and result.stdout == "so \n"
    assert [each["content"] for each in stub.requests[-1].body["messages"]] == ["two"]


def serving(reply: bytes) -> Respond:
    async def respond(request: Request) -> AsyncIterator[bytes]:
        yield models_response() if request.path == "/v1/models" else reply

    return respond


def everything(reply: bytes) -> Respond:
    async def respond(request: Request) -> AsyncIterator[bytes]:
        yield reply

    return respond


BROKEN = STREAM_HEAD + text_event("chat", "so ") + event({"error": {"message": "The service ended."}}) + STREAM_END


@pytest.mark.parametrize("style", [(), ("--json",)])
@pytest.mark.parametrize(
    ("respond", "code", "says"),
    [
        (serving(error_response("401 Unauthorized", "x")), 1, "refuses the API key"),
        (serving(error_response("404 Not Found", "No such model.")), 2, "No such model."),
        (serving(error_response("429 Too Many Requests", "The queue\nis full.")), 1, "The queue is full."),
        (everything(response("404 Not Found", b"<html>", "text/html")), 2, "does not answer as OpenAI's API does"),
        (everything(response("200 OK", b"<html>", "text/html")), 2, "does not answer as OpenAI's API does"),
        (everything(json_response({"hello": "world"})), 2, "does not answer as OpenAI's API does"),
        (everything(b"SSH-2.0-nothing\r\n\r\n"), 2, "does not answer as OpenAI's API does"),
    ],
)
def test_errors_are_a_line_or_two(run: Run, respond: Respond, code: int, says: str, style: tuple[str, ...]) -> None:
    with stub_server(respond) as stub:
        result = run("chat", "my secret", PLAIN, "--url", stub.url, *style)
    assert result.exit_code == code and says in result.stderr
    assert len(result.stderr.splitlines()) <= 2 and "Traceback" not in result.output
    assert "my secret" not in result.output


def test_a_stream_that_breaks_off_is_an_error(run: Run) -> None:
    with stub_server(serving(BROKEN)) as stub:
        result = run("chat", "Hi", PLAIN, "--url", stub.url)
    assert result.exit_code == 1 and "The service ended." in result.stderr


@pytest.mark.parametrize("way", [PLAIN, "--allow-software-tee"])
def test_nobody_listening_is_said_with_what_to_do(run: Run, way: str) -> None:
    result = run("chat", "Hi", way, "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1 and "cloister serve" in result.stderr and len(result.stderr.splitlines()) == 2


BOTH = ("Hi", PLAIN, "--allow-software-tee")


@pytest.mark.parametrize(
    "arguments", [("Hi", "--url", "nonsense"), ("--json",), ("-",), ("Hi", "--max-tokens", "0"), BOTH]
)
def test_wrong_use_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    result = run("chat", *arguments, stdin="")
    assert result.exit_code == 2 and result.stderr and "Traceback" not in result.output


def test_a_model_cannot_command_the_terminal() -> None:
    assert without_control_characters("a\x1b[2Jb\x07c\u202ed\n\té 漢 🙂") == "a[2Jbcd\n\té 漢 🙂"
