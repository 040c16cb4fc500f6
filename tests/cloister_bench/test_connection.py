from collections.abc import AsyncIterator

import pytest

from cloister.addresses import HttpAddress
from cloister.errors import ProtocolError, SetupError
from cloister_bench.connection import Connection, Exchange
from tests.cloister_bench.stub_server import Request, stub_server


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("https://example.org", "https://example.org:443"),
        ("http://[::1]:9000/v1", "http://[::1]:9000"),
        ("http://host/api/v1", "http://host:80/api"),
    ],
)
def test_what_users_type_becomes_one_address(text: str, normal: str) -> None:
    assert str(HttpAddress.parse(text)) == normal


def test_the_prefix_stands_before_every_path() -> None:
    assert HttpAddress.parse("http://host/api/v1").path("/v1/models") == "/api/v1/models"


@pytest.mark.parametrize("text", ["", "localhost:8000", "ftp://host", "http://", "http://host:port", "http://u:p@host"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SetupError) as refused:
        HttpAddress.parse(text)
    assert "http://127.0.0.1:8000" in (refused.value.hint or "")
    assert "u:p" not in str(refused.value)


def asked(*pieces: bytes) -> Exchange:
    """These pieces, and then the connection ends."""

    async def respond(request: Request) -> AsyncIterator[bytes]:
        for piece in (*pieces, b""):
            yield piece

    with stub_server(respond) as stub:
        return Connection(HttpAddress.parse(stub.url), timeout_s=20.0).exchange("GET", "/v1/models")


def test_a_body_comes_chunked_counted_or_until_the_connection_ends() -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    assert asked(head + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel", b"\r\n2\r\nlo\r\n0\r\n\r\n").body == b"hello"
    assert asked(head + b"content-length: 5\r\n\r\nhe", b"llo").body == b"hello"
    assert asked(head + b"\r\nhello").body == b"hello"
    assert asked(b"HTTP/1.1 100 Continue\r\n\r\n" + head + b"Content-Length: 2\r\n\r\nok").body == b"ok"
    assert asked(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").status == 404


@pytest.mark.parametrize("length", [b"Transfer-Encoding: chunked\r\n\r\n5\r\n", b"Content-Length: 9\r\n\r\n"])
def test_a_body_cut_off_is_no_answer(length: bytes) -> None:
    with pytest.raises(OSError):
        asked(b"HTTP/1.1 200 OK\r\n" + length + b"hello")


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"x" * 70_000,
    ],
    ids=range(4),
)
def test_what_is_not_http_or_does_not_end_is_refused(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister_bench.connection.MAX_BODY_BYTES", 1000)
    with pytest.raises(ProtocolError):
        asked(raw)
