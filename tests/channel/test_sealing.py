"""Sealed requests and prompts open only where they belong; buckets are never too small, few and not wasteful."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel import sealing
from cloister.channel.sealing import (
    FINE_BYTES,
    SMALLEST_BYTES,
    ChannelKey,
    address_to,
    open_prompt,
    open_request,
    padded,
    seal_prompt,
    seal_request,
)
from cloister.errors import ChannelBroken

NODE = ChannelKey.generate()


@given(st.binary(max_size=3000))
def test_request_and_prompt_come_back(plaintext: bytes) -> None:
    enc, mine = address_to(NODE.public)
    theirs = NODE.accept(enc)
    assert open_request(theirs.request, enc, seal_request(mine.request, enc, plaintext)) == plaintext
    assert open_prompt(theirs.prompt, enc, 3, seal_prompt(mine.prompt, enc, 3, plaintext)) == plaintext


def test_every_flipped_bit_is_seen() -> None:
    enc, mine = address_to(NODE.public)
    sealed = seal_prompt(mine.prompt, enc, 0, b"a secret")
    for bit in range(len(sealed) * 8):
        altered = bytearray(sealed)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChannelBroken):
            open_prompt(mine.prompt, enc, 0, bytes(altered))


def test_every_truncation_is_seen() -> None:
    enc, mine = address_to(NODE.public)
    sealed = seal_request(mine.request, enc, b"a secret")
    for length in range(len(sealed)):
        with pytest.raises(ChannelBroken):
            open_request(mine.request, enc, sealed[:length])


def test_a_prompt_opens_in_its_own_place_only() -> None:
    enc, mine = address_to(NODE.public)
    sealed = seal_prompt(mine.prompt, enc, 1, b"a secret")
    other_enc, other = address_to(NODE.public)
    for key, at, index in [
        (mine.prompt, enc, 0),
        (mine.prompt, other_enc, 1),
        (other.prompt, enc, 1),
        (mine.request, enc, 1),
        (mine.response, enc, 1),
    ]:
        with pytest.raises(ChannelBroken):
            open_prompt(key, at, index, sealed)
    assert open_prompt(mine.prompt, enc, 1, sealed) == b"a secret"


def test_request_and_prompt_are_not_taken_for_each_other_even_under_one_key() -> None:
    enc, mine = address_to(NODE.public)
    with pytest.raises(ChannelBroken):
        open_request(mine.prompt, enc, seal_prompt(mine.prompt, enc, 0, b"a secret"))


def test_sizes_are_those_of_buckets() -> None:
    enc, mine = address_to(NODE.public)
    sizes = {length: len(seal_prompt(mine.prompt, enc, 0, bytes(length))) for length in range(0, 4200, 7)}
    assert set(sizes.values()) == {size + 16 for size in (512, 1024, 2048, 4096, 8192)}
    assert {size for length, size in sizes.items() if length <= 508} == {528}
    assert {size for length, size in sizes.items() if 508 < length <= 1020} == {1040}


def test_too_much_is_refused_before_it_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MAX_PLAINTEXT_BYTES", 100)
    enc, mine = address_to(NODE.public)
    with pytest.raises(ChannelBroken, match="at most 100 bytes"):
        seal_prompt(mine.prompt, enc, 0, bytes(101))


@given(st.binary(max_size=64))
def test_unpad_of_anything_is_bytes_or_channel_broken(plaintext: bytes) -> None:
    with contextlib.suppress(ChannelBroken):
        assert len(sealing.unpad(plaintext)) <= len(plaintext)


@given(st.integers(0, 1 << 26))
def test_a_bucket_holds_its_length_and_is_its_own_bucket(length: int) -> None:
    size = padded(length)
    assert size >= max(length, SMALLEST_BYTES)
    assert padded(size) == size


@given(st.integers(0, 1 << 26), st.integers(0, 1 << 26))
def test_longer_is_never_smaller(one: int, other: int) -> None:
    assert (one <= other) <= (padded(one) <= padded(other))


@given(st.integers(SMALLEST_BYTES, 1 << 26))
def test_padding_costs_at_most_a_doubling_or_a_step(length: int) -> None:
    assert padded(length) < 2 * length or padded(length) == SMALLEST_BYTES
    assert padded(length) - length < FINE_BYTES


def test_there_are_few_buckets() -> None:
    assert {padded(length) for length in range(1 << 16)} == {1 << power for power in range(9, 17)}
