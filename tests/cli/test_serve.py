import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from cloister.config import DEVELOPMENT_KEY
from cloister.keys import key_line
from cloister.models.source import ModelFolder
from tests.cli.conftest import Run
from tests.forkserver.model import save_model
from tests.served import Server, is_confined, lives, running_server

SMALL = ("--kv-cache-mib", "64", "--vault-kv-mib", "64", "--spare-vaults", "1")
SOFTWARE = ("--allow-software-tee",)
LEVELS = ("open", "partitioned", "isolated")
MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder) -> Iterator[Server]:
    """One server for the tests that leave it as they found it, and for the last of them, which ends it."""
    how = ("--model", str(short_folder.path), "--drain", "600")
    with running_server(tmp_path_factory.mktemp("served") / "log", *SMALL, *how) as server:
        yield server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A model that is loaded in no time, for tests that are about the processes."""
    model = save_model(tmp_path_factory.mktemp("model") / "tiny").path
    return (*SMALL, "--model", str(model), "--dtype", "fp32", "--threads", "2")


def ask(url: str, model: str = MODEL, *, session: str | None = None, level: str = "partitioned") -> httpx.Response:
    headers = {"Authorization": f"Bearer {DEVELOPMENT_KEY}", "X-Cloister-Protection": level}
    if session:
        headers["X-Cloister-Session"] = session
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=240)


def eventually(true: Callable[[], bool], patience_s: float = 240) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if lives(one)]


@pytest.mark.slow
def test_serve_answers_chat_at_every_level(server: Server, run: Run) -> None:
    url = server.url()
    answer = run(
        "chat", "What is the capital of France?", "--url", url, *SOFTWARE, "--temperature", "0", "--max-tokens", "12"
    )
    assert answer.exit_code == 0
    [said] = {ask(url, level=level).json()["choices"][0]["message"]["content"] for level in LEVELS}
    assert said.strip() and said.strip() in answer.stdout
    assert run("chat", "Hi", "--url", url).exit_code == 1  # no hardware speaks for this node
    assert run("chat", "Hi", "--url", url, *SOFTWARE, key="wrong").exit_code == 1
    assert run("chat", "Hi", "--url", url, *SOFTWARE, "--protection", "obfuscated").exit_code == 2
    measured = run(
        "bench", "peers", "--server", url, "--users", "2", "--requests-per-user", "1", "--output-tokens", "4"
    )
    assert measured.exit_code == 0, measured.output


@pytest.mark.slow
def test_its_processes_show_what_they_are_and_nothing_of_who_uses_them(server: Server) -> None:
    assert ask(server.url(), session="a-session").status_code == 200
    processes = [psutil.Process(server.process.pid), *running(server.children())]
    names = {Path(f"/proc/{one.pid}/comm").read_text().strip() for one in processes}
    fronts = {"cl-controller", "cl-gateway", "cl-sealed-api"}
    assert names == fronts | {"cl-template", "cl-keeper", "cl-forkserver", "cl-service", "cl-vault"}
    told = " ".join(word for one in processes for word in one.cmdline())
    assert "cloister vault" in told and "cloister service" in told and "a-session" not in told
    assert is_confined(server.child("gateway"))


@pytest.mark.slow
def test_a_killed_gateway_comes_back_at_the_same_address(server: Server) -> None:
    url = server.url()
    gateway = server.child("gateway")
    gateway.kill()
    eventually(lambda: not lives(gateway))
    eventually(lambda: healthy(url))
    assert ask(url).status_code == 200
    assert server.url() == url


@pytest.mark.slow
def test_sigterm_lets_an_answer_end_and_takes_no_new_request(server: Server) -> None:
    """Ctrl-C, or a second SIGTERM, would not wait. A request that runs is one whose body is still on its way."""
    fields = {"model": MODEL, "prompt": "Once", "max_tokens": 40, "ignore_eos": True, "stream": True}
    begun, go_on = threading.Event(), threading.Event()

    def body() -> Iterator[bytes]:
        begin, rest = json.dumps(fields).encode().split(b",", 1)
        yield begin
        begun.set()
        assert go_on.wait(240)
        yield b"," + rest

    url, key = server.url(), {"Authorization": f"Bearer {DEVELOPMENT_KEY}", "Content-Type": "application/json"}
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(httpx.post, f"{url}/v1/completions", content=body(), headers=key, timeout=240)
        assert begun.wait(240) and httpx.get(f"{url}/ready", timeout=60).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: httpx.get(f"{url}/ready", timeout=60).status_code == 503)
        refused = ask(url)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        go_on.set()
        assert [line for line in answer.result(240).text.splitlines() if line][-1] == "data: [DONE]"
    assert server.process.wait(60) == 0
    assert server.said.rstrip().endswith("Stopped.")


@pytest.mark.slow
def test_keys_change_while_it_runs_and_ctrl_c_leaves_nothing_behind(
    tmp_path: Path, tiny: tuple[str, ...], run: Run
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f"[keys]\n{key_line(DEVELOPMENT_KEY, 'ann')}\n")
    server = Server(tmp_path / "log", *tiny, "--keys", str(keys), "--served-model-name", "mine")
    try:
        assert ask(server.url(), "mine", session="kept").status_code == 200
        children = server.children()
        assert len(children) >= 4  # gateway, fork server, service, the session's vault
        added = run("key", "new", "bob", "--into", str(keys)).stdout.strip()
        keys.write_text("\n".join(line for line in keys.read_text().splitlines() if "ann" not in line))
        os.killpg(server.process.pid, signal.SIGHUP)  # as a terminal would: only the controller acts on it
        eventually(lambda: "read again" in server.said)
        eventually(lambda: ask(server.url(), "mine").status_code == 401)
        sealed = ("chat", "Hi", "--url", server.url(), *SOFTWARE, "--max-tokens", "1")
        (kept := tmp_path / "key").write_text(added + "\n")
        kept.chmod(0o600)
        assert run(*sealed).exit_code == 1 and run(*sealed, "--api-key-file", str(kept)).exit_code == 0
        kept.chmod(0o644)
        assert run(*sealed, "--api-key-file", str(kept)).exit_code == 2, "others may read it"
        keys.write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "stay as they were" in server.said)
        assert not server.process.poll() and running(server.children())
        os.killpg(server.process.pid, signal.SIGTERM)
        server.process.wait(60)
    finally:
        status = server.stop()
    assert status == 0
    assert not running(children)
    said = server.said
    assert "ready in" in said and said.rstrip().endswith("Stopped.") and "starting it again" not in said
    assert "France" not in said and "Traceback" not in said and "Error" not in said


@pytest.mark.slow
@pytest.mark.release  # chaos/test_stopped.py ends a node's template too
def test_without_the_code_it_loaded_the_node_stops(tmp_path: Path, tiny: tuple[str, ...]) -> None:
    """What would be started again would be read from the disk, under evidence of what was there before."""
    with running_server(tmp_path / "log", *tiny) as server:
        server.url()
        children = server.children()
        server.child("gateway").parent().kill()
        assert server.process.wait(60) == 1 and "holds the node's code" in server.said
        eventually(lambda: not running(children))


@pytest.mark.slow
@pytest.mark.release  # chaos/test_chaos.py ends with that
def test_a_killed_controller_takes_everything_with_it(tmp_path: Path, tiny: tuple[str, ...]) -> None:
    shared_before = set(os.listdir("/dev/shm"))
    server = Server(tmp_path / "log", *tiny)
    try:
        assert ask(server.url(), "tiny", session="kept").status_code == 200
        children = server.children()
        assert len(children) >= 4
    finally:
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    eventually(lambda: not running(children))
    assert not {name for name in set(os.listdir("/dev/shm")) - shared_before if "cloister" in name}


def test_the_development_key_stays_on_this_machine(run: Run) -> None:
    result = run("serve", "--host", "0.0.0.0")
    assert result.exit_code == 2 and "--keys" not in result.stdout and "cloister key new" in result.stderr


def test_a_node_without_attention_processes_is_refused(run: Run) -> None:
    result = run("serve", "--attention-processes", "0", "--model", "./no-such-model")
    assert result.exit_code == 2 and "attention-processes" in result.stderr


@pytest.mark.parametrize("profile", ["tenants", "pcc"])
def test_a_node_whose_settings_break_its_profile_does_not_start(run: Run, profile: str) -> None:
    result = run("serve", "--port", "0", "--profile", profile, "--model", "./no-such-model")
    assert result.exit_code == 2 and f"break the profile '{profile}'" in result.stderr and "--keys" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "./no-such-model"),
        ("--keys", "no-such-file.toml"),
        ("--port", "70000"),
        ("--dtype", "int3"),
        ("--max-vaults", "0"),
    ],
)
def test_wrong_settings_are_a_line_or_two(run: Run, arguments: tuple[str, ...]) -> None:
    result = run("serve", *arguments)
    assert result.exit_code in (1, 2) and result.stderr and "Traceback" not in result.output


def test_a_taken_port_is_said_before_the_model_is_even_looked_for(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("serve", "--port", str(taken.getsockname()[1]), "--model", "./no-such-model")
    assert result.exit_code == 2 and "Cannot listen" in result.stderr and "--port" in result.stderr


def test_the_port_is_kept_until_somebody_listens_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr("cloister.process.entry.become", lambda *given: kept.append(given[5]))
    monkeypatch.setattr("cloister.models.source.find_model", lambda name: ModelFolder("m", Path("/m"), {}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert run("serve", "--port", str(port), "--mpc", "off").exit_code == 0
    assert "Cannot listen" in run("serve", "--port", str(port)).stderr
    os.close(kept[0])


@pytest.mark.parametrize(("policy", "says"), [("system-prompt", "partition"), ("everyone", "counted")])
def test_a_prefix_policy_that_is_none_is_refused_with_what_to_use(run: Run, policy: str, says: str) -> None:
    result = run("serve", "--prefix-policy", policy)
    assert result.exit_code == 2 and says in " ".join(result.output.replace("│", " ").split())
