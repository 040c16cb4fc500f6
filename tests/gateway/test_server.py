"""The server as a process: it says where it listens, and a signal ends it in order."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import httpx
import pytest

from cloister.config import GatewaySettings
from cloister.errors import SetupError
from cloister.gateway.server import serve
from tests.gateway.fakes import KEY, chat_body

PROGRAM = """
import uvloop
from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from cloister.gateway.server import serve
from tests.gateway.fakes import MODEL, ByteTokenizer, FakeBackend

async def main():
    backend, settings = FakeBackend(), GatewaySettings(port=0)
    backend.pause = PAUSE
    app = create_app(backend, ByteTokenizer(), MODEL, settings, created=1)
    await serve(app, settings, lambda url: print(url, flush=True))
    print("closed in order", backend.open, backend.cancelled, flush=True)

uvloop.run(main())
"""


def started(pause: float) -> subprocess.Popen[str]:
    program = PROGRAM.replace("PAUSE", str(pause))
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_answers_end(number: signal.Signals) -> None:
    with started(0.02) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=chat_body(stream=True), headers=KEY) as response:
            lines = response.iter_lines()
            next(lines)
            assert httpx.get(f"{url}/metrics").status_code == 401
            assert httpx.get(f"{url}/metrics", headers=KEY).status_code == 200
            process.send_signal(number)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert process.stdout.read().strip() == "closed in order 0 0"
        assert process.wait() == 0


def test_an_answer_that_takes_longer_is_cut_without_a_word() -> None:
    with started(0.4) as process:
        assert process.stdout and process.stderr
        url = process.stdout.readline().strip()
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=chat_body(stream=True), headers=KEY) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        assert process.wait() == 0 and process.stderr.read() == ""


async def test_a_port_that_is_taken_is_an_error_to_act_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"Cannot listen on 127.0.0.1 port {port}.*--port"):
            await serve(None, GatewaySettings(port=port), print)  # type: ignore[arg-type]
