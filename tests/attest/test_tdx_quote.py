"""The parser of TDX quotes: what it reads, and that malformed quotes end in EvidenceInvalid and nothing else."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.attest.tdx.quote import MAX_QUOTE_BYTES, read_quote
from cloister.errors import EvidenceInvalid
from tests.fuzz.tdx_made import SEPT_VE_DISABLE, MadePlatform

PLATFORM = MadePlatform()
QUOTE = PLATFORM.quote(report_data=bytes(range(64)))


@pytest.mark.parametrize(
    ("version", "body", "name"), [(4, 2, "1.0"), (5, 2, "1.0"), (5, 3, "1.5"), (5, 4, "1.5 extended")]
)
def test_reads_every_field_of_every_kind_of_quote(version: int, body: int, name: str) -> None:
    quote = read_quote(PLATFORM.quote(version, body, report_data=bytes(range(64)), mrtd=b"\xab" * 48))
    report = quote.report
    assert (quote.version, report.version) == (version, name)
    assert report.mrtd == b"\xab" * 48
    assert report.mrseam == b"\x22" * 48
    assert [getattr(report, f"rtmr{index}") for index in range(4)] == [bytes([0x30 + index]) * 48 for index in range(4)]
    assert report.td_attributes == SEPT_VE_DISABLE
    assert report.xfam.hex() == "e702060000000000"
    assert report.report_data == bytes(range(64))
    assert report.tee_tcb_svn[:3] == bytes([6, 1, 3])
    assert report.tee_tcb_svn2 == (report.tee_tcb_svn if body > 2 else bytes(16))
    assert quote.pck_chain == PLATFORM.chain


def test_what_follows_the_signature_data_is_not_read() -> None:
    assert read_quote(QUOTE + b"\0padding") == read_quote(QUOTE)


@pytest.mark.parametrize(
    ("at", "form", "value", "says"),
    [
        (0, "<H", 3, "version 3"),
        (2, "<H", 3, "attestation key"),
        (4, "<I", 0, "TEE type"),
        (632, "<I", 0xFFFFFFFF, "quote ends early"),
        (632, "<I", 100, "signature data ends early"),
        (764, "<H", 5, "certified by"),
        (766, "<I", 1 << 30, "signature data ends early"),
        (766, "<I", 64, "certification data ends early"),
        (1218, "<H", 0xFFFF, "certification data ends early"),
    ],
)
def test_a_wrong_number_is_named(at: int, form: str, value: int, says: str) -> None:
    quote = bytearray(QUOTE)
    struct.pack_into(form, quote, at, value)
    with pytest.raises(EvidenceInvalid, match=says):
        read_quote(bytes(quote))


def test_more_signature_data_than_is_read_is_refused() -> None:
    (length,) = struct.unpack_from("<I", QUOTE, 632)
    longer = QUOTE[:632] + struct.pack("<I", length + 1) + QUOTE[636 : 636 + length] + b"x" + QUOTE[636 + length :]
    with pytest.raises(EvidenceInvalid, match="more bytes than expected"):
        read_quote(longer)


@pytest.mark.parametrize("body", [1, 5])
def test_other_bodies_are_refused(body: int) -> None:
    quote = bytearray(PLATFORM.quote(5, 3))
    struct.pack_into("<H", quote, 48, body)
    with pytest.raises(EvidenceInvalid, match=f"type {body}"):
        read_quote(bytes(quote))


def test_a_body_of_another_size_than_its_type_is_refused() -> None:
    quote = bytearray(PLATFORM.quote(5, 3))
    struct.pack_into("<I", quote, 50, 584)
    with pytest.raises(EvidenceInvalid, match="size"):
        read_quote(bytes(quote))


def test_an_oversized_quote_is_refused() -> None:
    with pytest.raises(EvidenceInvalid, match="at most"):
        read_quote(QUOTE + bytes(MAX_QUOTE_BYTES))


def test_every_shorter_quote_is_refused() -> None:
    for length in range(len(QUOTE)):
        with pytest.raises(EvidenceInvalid):
            read_quote(QUOTE[:length])


@given(st.binary(max_size=2048), st.integers(0, len(QUOTE)))
def test_no_bytes_make_it_fail_otherwise(data: bytes, at: int) -> None:
    for quote in (data, QUOTE[:at] + data, QUOTE[:at] + data + QUOTE[at + len(data) :]):
        with contextlib.suppress(EvidenceInvalid):
            read_quote(quote)
