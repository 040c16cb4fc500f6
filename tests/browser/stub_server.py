"""A server that plays the gateway for the page: serves its files, and answers chats by a script. Computes nothing."""

from __future__ import annotations

import json
import mimetypes
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cloister.levels import LEVELS

PAGE = Path(__file__).parents[2] / "src" / "cloister" / "gateway" / "page"
ANSWER_ID = "chatcmpl-stub"
KEY = "stub-key"
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@dataclass
class Gate:
    """A point of the stream that is passed only when the test says so."""

    opened: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        self.opened.set()


@dataclass
class Refusal:
    status: int
    code: str
    message: str
    headers: dict[str, str] = field(default_factory=dict)


BROKEN = object()  # a step: the connection ends here, without [DONE]
Step = str | bytes | Gate | object


@dataclass
class Stub:
    """The script of the next answers, and what the page asked."""

    url: str = ""
    enabled: tuple[str, ...] = ("open", "partitioned", "isolated")
    default: str | None = "partitioned"
    missing_layers: tuple[str, ...] = ()
    development_key: str | None = KEY
    view: dict[str, Any] | None = None  # the provider's account of the answer that comes; None: it has none
    flaws: set[str] = field(default_factory=set)  # paths and fields that it serves, and should not
    views_asked: int = 0
    ended_sessions: list[str] = field(default_factory=list)
    answers: list[list[Step] | Refusal] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)

    def will_answer(self, *steps: Step) -> None:
        """Strings become chunks of the answer, bytes go out as they are, a Gate waits."""
        self.answers.append(list(steps))

    def account(self, prompt: str, output: str, rows: int, *, known: bool = True) -> None:
        """Let the provider's process have these texts, and so many rows over the link."""
        counts = {"asked_rows": rows, "asked_bytes": rows * 100, "answered_rows": rows, "answered_bytes": rows * 112}
        texts = {"prompt": prompt, "output": output}
        tokens = {name: {"tokens": list(text.encode()), "text": text} for name, text in texts.items()}
        shared = {"found": 0, "found_shared": 0, "blocks": []}
        self.view = {"index": 0, "known": known, "layers": 30, **tokens, **counts, **shared}

    def will_refuse(self, status: int, code: str, message: str, **headers: str) -> None:
        self.answers.append(Refusal(status, code, message, headers))


@contextmanager
def running_stub() -> Iterator[Stub]:
    stub = Stub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(stub))
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def handler_of(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/api/page":
                levels = [
                    {
                        "id": level.name,
                        "enabled": level.name in stub.enabled,
                        "provider_sees": level.provider_sees,
                        "uses_vault": level.uses_vault,
                        "slow": level.slow,
                    }
                    for level in LEVELS.values()
                ]
                told = {"model": "stub-model", "levels": levels, "default_level": stub.default}
                self.send_json(
                    200, {**told, "missing_layers": stub.missing_layers, "development_key": stub.development_key}
                )
                return
            if self.path == f"/v1/requests/{ANSWER_ID}/view":
                stub.views_asked += 1
                known = self.headers.get("Authorization") == f"Bearer {KEY}" and stub.view is not None
                view = {"id": ANSWER_ID, "choices": [stub.view]} if known else {"error": {"message": "Nothing here."}}
                self.send_json(200 if known else 404, view)
                return
            name = "index.html" if self.path == "/" else self.path.removeprefix("/static/")
            file = PAGE / name
            if "/" in name or not file.is_file():
                self.send_json(404, {"error": {"message": "No such file.", "code": "not_found"}})
                return
            kind = "text/javascript" if file.suffix == ".js" else mimetypes.guess_type(name)[0]
            self.send(200, str(kind), file.read_bytes())

        def do_PUT(self) -> None:
            self.send_json(405, {})

        def do_DELETE(self) -> None:
            if not self.path.startswith("/v1/sessions/"):
                self.send_json(404, {})
                return
            if self.headers.get("Authorization") == f"Bearer {KEY}":
                stub.ended_sessions.append(unquote(self.path.removeprefix("/v1/sessions/")))
            self.send_response(204)
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.path.endswith("/chat/completions"):  # what an audit tries
                served = stub.flaws & {self.path, *(body or ())}
                known = self.path == "/v1/evidence" or self.headers.get("Authorization") == f"Bearer {KEY}"
                self.send_json(200 if served else 400 if known else 401, {})
                return
            stub.bodies.append(body)
            if self.headers.get("Authorization") != f"Bearer {KEY}":
                self.refuse(Refusal(401, "invalid_api_key", "This API key is not known here."))
                return
            answer = stub.answers.pop(0)
            if isinstance(answer, Refusal):
                self.refuse(answer)
            else:
                self.stream(answer)

        def stream(self, steps: list[Step]) -> None:
            self.start(200, "text/event-stream", {})
            try:
                for step in steps:
                    if step is BROKEN:
                        return
                    if isinstance(step, Gate):
                        self.wait_at(step)
                    elif isinstance(step, bytes):
                        self.wfile.write(step)
                    else:
                        self.event({"choices": [{"index": 0, "delta": {"content": step}, "finish_reason": None}]})
                self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                count = sum(isinstance(step, str) for step in steps)
                self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count}})
                self.wfile.write(b"data: [DONE]\n\n")
            except ConnectionError:
                stub.left.set()

        def wait_at(self, gate: Gate) -> None:
            while not gate.opened.wait(0.02):
                readable, _, _ = select.select([self.connection], [], [], 0)
                if readable and not self.connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionAbortedError

        def event(self, chunk: dict[str, Any]) -> None:
            self.wfile.write(f"data: {json.dumps({'id': ANSWER_ID, **chunk})}\n\n".encode())

        def refuse(self, refusal: Refusal) -> None:
            error = {"message": refusal.message, "type": "error", "param": None, "code": refusal.code}
            self.send_json(refusal.status, {"error": error}, refusal.headers)

        def send_json(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
            self.send(status, "application/json", json.dumps(body).encode(), headers)

        def send(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.start(status, kind, {"Content-Length": str(len(body)), **(headers or {})})
            self.wfile.write(body)

        def start(self, status: int, kind: str, headers: dict[str, str]) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Security-Policy", POLICY)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    return Handler
