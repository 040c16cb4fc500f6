import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.addresses import HttpAddress
from cloister.errors import ProtocolError, SetupError
from cloister_bench.connection import MAX_BODY_BYTES, Exchange


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


def fed(raw: bytes, cuts: list[int]) -> Exchange:
    exchange, at = Exchange(), 0
    for cut in sorted(cut for cut in cuts if cut < len(raw)):
        if cut > at:
            exchange.feed(raw[at:cut])
        at = max(at, cut)
    exchange.feed(raw[at:])
    return exchange


pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
cuts = st.lists(st.integers(1, 400), max_size=20)


@given(pieces, cuts)
def test_chunked_bodies_survive_any_cutting(chunks: list[bytes], cuts: list[int]) -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    raw += b"".join(b"%X;x=y\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\nTrailer: x\r\n\r\n"
    exchange = fed(raw, cuts)
    assert (exchange.status, exchange.complete, exchange.reusable) == (200, True, True)
    assert exchange.body == b"".join(chunks)


@given(st.binary(max_size=60), cuts)
def test_counted_bodies_survive_any_cutting(content: bytes, cuts: list[int]) -> None:
    raw = b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n" % len(content) + content
    exchange = fed(raw, cuts)
    assert (exchange.status, exchange.complete, exchange.body) == (404, True, content)


def test_a_body_of_unknown_length_ends_with_the_connection() -> None:
    exchange = fed(b"HTTP/1.1 200 OK\r\n\r\nhello", [])
    assert exchange.body == b"hello" and not exchange.complete
    exchange.connection_closed()
    assert exchange.complete and not exchange.reusable


def test_a_chunked_body_cut_off_is_not_complete() -> None:
    exchange = fed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", [])
    exchange.connection_closed()
    assert not exchange.complete


def test_connection_close_forbids_reuse() -> None:
    exchange = fed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", [])
    assert exchange.complete and not exchange.reusable


def test_an_interim_response_is_skipped() -> None:
    exchange = fed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", [])
    assert (exchange.status, exchange.body) == (200, b"ok")


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n" + b"x" * (MAX_BODY_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"x" * 70_000,
    ],
    ids=range(7),
)
def test_what_is_not_http_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        fed(raw, [])
