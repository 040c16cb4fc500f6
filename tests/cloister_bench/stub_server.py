"""A server that answers as told: raw HTTP/1.1 over a real socket, in a thread of its own. Computes nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MODEL = "stub-model"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Stub:
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0


Respond = Callable[[Request], AsyncIterator[bytes]]


def response(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def json_response(document: object, status: str = "200 OK") -> bytes:
    return response(status, json.dumps(document).encode())


def error_response(status: str, message: str) -> bytes:
    return json_response({"error": {"message": message, "type": "error", "param": None, "code": None}}, status)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: object) -> bytes:
    payload = document if isinstance(document, str) else json.dumps(document)
    return chunk(b"data: " + payload.encode() + b"\n\n")


def text_event(endpoint: str, text: str, finish: str | None = None) -> bytes:
    piece: dict[str, Any] = {"text": text} if endpoint == "completions" else {"delta": {"content": text}}
    return event({"id": "x", "model": MODEL, "choices": [{"index": 0, **piece, "finish_reason": finish}]})


def usage_event(prompt_tokens: int, completion_tokens: int) -> bytes:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"id": "x", "choices": [], "usage": usage})


def models_response(**more: object) -> bytes:
    return json_response({"object": "list", "data": [{"id": MODEL, "object": "model", **more}, {"id": "other"}]})


def openai_server(tokens_per_chunk: int = 1, answer: str = "word ") -> Respond:
    """An honest server: as many tokens as asked for, `tokens_per_chunk` in each event."""

    async def respond(request: Request) -> AsyncIterator[bytes]:
        if request.path == "/v1/models":
            yield models_response()
            return
        endpoint = "chat" if request.path == "/v1/chat/completions" else "completions"
        wanted = request.body.get("max_tokens", 4)
        prompt = request.body.get("prompt") or request.body["messages"][-1]["content"].split()
        if not request.body.get("stream"):
            message = {"message": {"role": "assistant", "content": answer * wanted}, "finish_reason": "length"}
            usage = {"prompt_tokens": len(prompt), "completion_tokens": wanted}
            yield json_response({"model": MODEL, "choices": [message], "usage": usage})
            return
        yield STREAM_HEAD
        if endpoint == "chat":
            yield event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        sent = 0
        while sent < wanted:
            now = min(tokens_per_chunk, wanted - sent)
            sent += now
            yield text_event(endpoint, answer * now, "length" if sent == wanted else None)
        yield usage_event(len(prompt), wanted)
        yield event("[DONE]")
        yield STREAM_END

    return respond


@contextmanager
def stub_server(respond: Respond) -> Iterator[Stub]:
    stub = Stub()
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stub.connections += 1
        try:
            while True:
                request = await _read(reader)
                stub.requests.append(request)
                async for data in respond(request):
                    writer.write(data)
                    await writer.drain()
                    if data == b"":  # an empty piece closes the connection
                        return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    started.wait()
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, json.loads(raw) if raw else {})
