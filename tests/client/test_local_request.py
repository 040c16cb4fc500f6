"""What a local program sends, by the bytes: each request once and whole, or a refusal that says why."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel.envelope import InnerHead
from cloister.client.downstream import Downstream, Request

HEAD = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: localhost\r\nX-Two: a\r\nX-Two: b\r\n"
SIZED = HEAD + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


class Program(asyncio.Transport):
    """A local program's end of a connection; `got` is what it was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.got, self.closed, self.paused = b"", False, False

    def write(self, data: Any) -> None:
        self.got += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Connection:
    """To be made where a loop runs. `answer` is the head of every answer; None leaves all without one."""

    def __init__(self, answer: InnerHead | None = InnerHead(200)) -> None:  # noqa: B008 (frozen)
        self.requests: list[Request] = []
        self.program, self._answer = Program(), answer
        self.downstream = Downstream(self._handle, lambda _: None)
        self.downstream.connection_made(self.program)

    async def _handle(self, request: Request, downstream: Downstream) -> None:
        self.requests.append(request)
        if self._answer is None:
            await asyncio.Event().wait()
        else:
            downstream.begin(self._answer)
            downstream.opened(b"yes", ended=True)

    async def feed(self, data: bytes) -> None:
        if self.program.closed:
            return
        self.downstream.data_received(data)
        while self.downstream.task is not None and self._answer is not None:
            await asyncio.sleep(0)

    @property
    def refused(self) -> int:
        """The status of the refusal that ended the connection; 0 if there was none."""
        return int(self.program.got.rpartition(b"HTTP/1.1 ")[2][:3]) if self.program.closed else 0


def read(data: bytes, cut: int = 1 << 30) -> Connection:
    async def feed() -> Connection:
        connection = Connection()
        for at in range(0, len(data), cut):
            await connection.feed(data[at : at + cut])
        return connection

    return asyncio.run(feed())


@pytest.mark.parametrize("data", [SIZED, CHUNKED])
@given(cut=st.integers(1, 200))
def test_requests_are_the_same_however_they_arrive(data: bytes, cut: int) -> None:
    connection = read(data + data, cut)
    first, second = connection.requests
    assert first == second and not connection.program.closed
    assert (first.method, first.path, first.body) == ("POST", "/v1/x?y=1", b"hello")
    assert first.values("x-two") == ["a", "b"]
    assert connection.program.got.lower().count(b"transfer-encoding: chunked") == 2


def test_an_older_program_understands_no_chunks_and_keeps_nothing_open() -> None:
    connection = read(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert b"chunked" not in connection.program.got.lower() and connection.program.got.endswith(b"\r\n\r\nyes")
    assert connection.program.closed


def test_leave_to_go_on_is_given_once_the_head_is_there() -> None:
    head, body = SIZED[:-5].replace(b"X-Two: a", b"Expect: 100-Continue"), SIZED[-5:]
    waiting = read(head)
    assert not waiting.requests and waiting.program.got == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert [request.body for request in read(head + body, len(head)).requests] == [b"hello"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\0\0\0", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"A: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (HEAD + b"A: b\r\n" * 20_000 + b"\r\n", 431),
        (HEAD + b"Content-Length: 99999999\r\n\r\n" + b"x" * (17 << 20), 413),
    ],
)
@pytest.mark.parametrize("cut", [1 << 30, 50_000])
def test_what_cannot_be_read_says_why(data: bytes, status: int, cut: int) -> None:
    connection = read(data, cut)
    assert connection.refused == status and not connection.requests


def test_an_endless_head_is_not_gathered_to_no_end() -> None:
    line = b"X-More: of the same, again and again\r\n"
    assert read(b"GET / HTTP/1.1\r\n" + line * 10_000, len(line)).refused == 431


def test_a_header_that_does_not_end_is_not_gathered_to_no_end() -> None:
    assert read(b"GET / HTTP/1.1\r\nX-More: " + b"of the same, again and again " * 10_000, 30).refused == 431


@given(st.binary(max_size=300))
def test_any_bytes_are_requests_or_refused(data: bytes) -> None:
    connection = read(data + data, 300)
    assert not connection.program.closed or 400 <= connection.refused < 500


async def test_requests_that_wait_are_not_gathered_to_no_end() -> None:
    connection = Connection(answer=None)
    await connection.feed(SIZED)
    await asyncio.sleep(0)
    for _ in range(1000):
        await connection.feed(SIZED)
    assert len(connection.requests) == 1 and connection.program.paused
    connection.downstream.connection_lost(None)


@pytest.mark.parametrize("length", ["1", "9", "x"])
async def test_an_answer_of_another_length_than_it_says_is_not_taken_for_whole(length: str) -> None:
    connection = Connection(InnerHead(200, (("content-length", length),)))
    await connection.feed(SIZED)
    assert connection.program.closed, "an end that its reader sees"


async def test_the_last_answer_ends_the_connection() -> None:
    connection = Connection()
    await connection.feed(SIZED)
    assert not connection.program.closed
    connection.downstream.close_when_idle()
    assert connection.program.closed
