import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.client.downstream import Request, RequestReader, Unreadable

HEAD = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: localhost\r\nX-Two: a\r\nX-Two: b\r\n"
SIZED = HEAD + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


def read(data: bytes, cut: int = 1 << 30) -> list[Request]:
    reader = RequestReader(lambda: None)
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
    return [request for piece in pieces for request in reader.feed(piece)]


@pytest.mark.parametrize("data", [SIZED, CHUNKED])
@given(cut=st.integers(1, 200))
def test_requests_are_the_same_however_they_arrive(data: bytes, cut: int) -> None:
    first, second = read(data + data, cut)
    assert first == second
    assert (first.method, first.path, first.body) == ("POST", "/v1/x?y=1", b"hello")
    assert first.values("x-two") == ["a", "b"] and first.keep_alive and first.chunks


def test_an_older_program_understands_no_chunks_and_keeps_nothing_open() -> None:
    (request,) = read(b"GET / HTTP/1.0\r\n\r\n")
    assert not request.chunks and not request.keep_alive


def test_leave_to_go_on_is_given_once_the_head_is_there() -> None:
    asked: list[int] = []
    reader = RequestReader(lambda: asked.append(1))
    head, body = SIZED[:-5].replace(b"X-Two: a", b"Expect: 100-Continue"), SIZED[-5:]
    assert not reader.feed(head) and asked == [1]
    assert [request.body for request in reader.feed(body)] == [b"hello"]


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
def test_what_cannot_be_read_says_why(data: bytes, status: int) -> None:
    with pytest.raises(Unreadable) as wrong:
        read(data)
    assert wrong.value.refusal.status == status


def test_an_endless_head_is_not_gathered_to_no_end() -> None:
    reader = RequestReader(lambda: None)
    reader.feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(Unreadable):
        for _ in range(100_000):
            reader.feed(b"X-More: of the same, again and again\r\n")


@given(st.binary(max_size=300))
def test_any_bytes_are_requests_or_refused(data: bytes) -> None:
    reader = RequestReader(lambda: None)
    try:
        requests = reader.feed(data) + reader.feed(data)
    except Unreadable as wrong:
        assert 400 <= wrong.refusal.status < 500
        return
    assert all(isinstance(request, Request) for request in requests)


def test_a_header_that_does_not_end_is_not_gathered_to_no_end() -> None:
    reader = RequestReader(lambda: None)
    reader.feed(b"GET / HTTP/1.1\r\nX-More: ")
    with pytest.raises(Unreadable) as wrong:
        for _ in range(100_000):
            reader.feed(b"of the same, again and again ")
    assert wrong.value.refusal.status == 431
