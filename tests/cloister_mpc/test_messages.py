"""Bytes from others around a computation on shares: typed messages within their limits, or ProtocolError."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ProtocolError
from cloister.messages.frames import FrameReader, encode_frame
from cloister_mpc.messages import (
    CHUNK_BYTES,
    FromEngine,
    FromVisitor,
    GenerationSpec,
    Piece,
    Prepare,
    Put,
    Result,
    Run,
    ShareHead,
    StartTunnel,
    ToDealer,
    ToFollower,
)

SESSION = b"s" * 16


@pytest.mark.parametrize("union", [FromVisitor, ToDealer, ToFollower, FromEngine])
@given(data=st.binary(max_size=400))
def test_any_bytes_are_messages_or_a_protocol_error(union: object, data: bytes) -> None:
    reader: FrameReader[msgspec.Struct] = FrameReader(union)
    try:
        reader.feed(len(data).to_bytes(4, "little") + data)
    except ProtocolError:
        return


@given(
    st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.text(max_size=40),
        st.lists,
        max_leaves=8,
    )
)
def test_well_formed_msgpack_of_no_message_is_refused(value: object) -> None:
    body = msgspec.msgpack.encode([{"type": "put", "session": value, "head": value}])
    with pytest.raises(ProtocolError):
        FrameReader(FromVisitor).feed(len(body).to_bytes(4, "little") + body)


@pytest.mark.parametrize("name", ["", "../up", "w/../x", "A", "a//b", "a/", "/a", "a/b/c/d/e/f", "x" * 65, "a b"])
def test_names_of_variables_are_plain(name: str) -> None:
    assert not _accepted(Put(SESSION, ShareHead(name, "int32", (1,))))


@pytest.mark.parametrize(
    "message",
    [
        Put(b"short", ShareHead("coarse", "int32", (1,))),
        Put(SESSION, ShareHead("coarse", "object", (1,))),  # type: ignore[arg-type]
        Put(SESSION, ShareHead("coarse", "int32", (0,))),
        Put(SESSION, ShareHead("coarse", "int32", (1,) * 6)),
        Piece(SESSION, b""),
        Piece(SESSION, b"x" * (CHUNK_BYTES + 1)),
        Run(SESSION, -1, "prefill"),
        Run(SESSION, 0, "eval"),  # type: ignore[arg-type]
    ],
)
def test_what_is_out_of_bounds_is_refused(message: msgspec.Struct) -> None:
    assert not _accepted(message)


def test_what_is_within_bounds_is_not() -> None:
    assert _accepted(Put(SESSION, ShareHead("0/shuffles/1", "int32", (3, 4, 4))))
    assert _accepted(Piece(SESSION, b"x" * CHUNK_BYTES))
    assert _accepted(Run(SESSION, 0, "step", 3, 2))


def test_nobody_can_ask_for_a_variable_or_send_code() -> None:
    """There is no message for either: what a client may send has shares, terms and orders, and no other field."""
    names = {field for kind in FromVisitor.__args__ for field in kind.__struct_fields__}
    assert not names & {"code", "program", "executable", "fetch", "variable", "function"}


def test_messages_with_shares_do_not_show_them() -> None:
    assert "secret" not in repr(Piece(SESSION, b"secret"))
    key = b"secret".ljust(16)
    assert "secret" not in repr((Prepare(1, key), StartTunnel(b"", 0, "", key)))


def test_terms_name_functions_and_answers_that_exist() -> None:
    for wrong in ({"functions": "mine"}, {"answer": "weights"}, {"prompt_tokens": 0}, {"new_tokens": 1 << 30}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"prompt_tokens": 16, "new_tokens": 1, **wrong}, GenerationSpec)


@pytest.mark.parametrize("kind", ["aby3.AShr<FM64>", "aby3.BShr<PT_U8,8>"])
def test_results_of_all_kinds_of_shares_travel(kind: str) -> None:
    result = Result(SESSION, ShareHead("answer", "int32", (1,)), kind, 16)
    assert FrameReader(ToDealer).feed(encode_frame((result,))) == [result]


def _accepted(message: msgspec.Struct) -> bool:
    try:
        return FrameReader(FromVisitor).feed(encode_frame((message,))) == [message]
    except ProtocolError:
        return False
