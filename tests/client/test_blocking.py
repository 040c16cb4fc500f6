"""An asynchronous transport behind a blocking one: results, errors and interruptions cross the threads."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator

import httpx2
import pytest

from cloister.client.sealed_transport import BlockingTransport


class Pieces(httpx2.AsyncByteStream):
    def __init__(self, owner: "Fake") -> None:
        self._owner = owner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    async def aclose(self) -> None:
        self._owner.closed.append("stream")


class Fake(httpx2.AsyncBaseTransport):
    def __init__(self) -> None:
        self.closed: list[str] = []
        self.cancelled = threading.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/refused":
            raise httpx2.ConnectError("nobody there", request=request)
        if request.url.path == "/slow":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return httpx2.Response(200, headers={"x-body": request.content.decode()}, stream=Pieces(self))

    async def aclose(self) -> None:
        self.closed.append("transport")


def threads() -> int:
    return sum(thread.name == "client" for thread in threading.enumerate())


def test_answers_and_errors_come_out() -> None:
    fake, before = Fake(), threads()
    with httpx2.Client(transport=BlockingTransport(fake), base_url="http://node.example") as client:
        answer = client.post("/", content="hello")
        assert answer.content == b"one two" and answer.headers["x-body"] == "hello"
        with pytest.raises(httpx2.ConnectError):
            client.get("/refused")
        with client.stream("GET", "/") as streamed:
            assert next(streamed.iter_raw()) == b"one "
    assert fake.closed == ["stream", "stream", "transport"] and threads() == before


def test_an_interrupted_caller_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    transport = BlockingTransport(fake)
    real = asyncio.run_coroutine_threadsafe

    def interrupted(*given: object) -> object:
        future = real(*given)  # type: ignore[arg-type]

        def result() -> None:
            time.sleep(0.1)
            raise KeyboardInterrupt

        future.result = result  # type: ignore[method-assign,assignment]
        return future

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        transport.handle_request(httpx2.Request("GET", "http://node.example/slow"))
    assert fake.cancelled.wait(5)
    transport.close()
    transport.close()


def test_a_transport_that_is_dropped_ends_its_thread() -> None:
    before = threads()
    transport = BlockingTransport(Fake())
    assert threads() == before + 1
    del transport
    gc.collect()
    end = time.monotonic() + 5
    while threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() == before
