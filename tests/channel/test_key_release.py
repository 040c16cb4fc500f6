"""The content key's way to a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel.envelope import Envelope, receive_release, release_to
from cloister.channel.sealing import ChannelKey, address_to, open_request, seal_request
from cloister.channel.stream import StreamSealer
from cloister.errors import ChannelBroken, ChannelKeyUnknown

NODE = ChannelKey.generate()
KEY = bytes(range(32))


def test_a_release_arrives_and_is_confirmed() -> None:
    release = release_to(NODE.public, KEY)
    received, answer = receive_release(NODE, release.message)
    assert received == KEY and KEY not in release.message
    release.confirm(answer)


def test_only_the_addressee_can_confirm() -> None:
    release = release_to(NODE.public, KEY)
    _, other = receive_release(NODE, release_to(NODE.public, KEY).message)
    with pytest.raises(ChannelBroken):
        release.confirm(other)
    for lie in (b"", b"taken", b'{"status": "taken"}', bytes(1000)):
        with pytest.raises(ChannelBroken):
            release_to(NODE.public, KEY).confirm(lie)


def test_a_confirmation_says_so() -> None:
    release = release_to(NODE.public, KEY)
    envelope = Envelope.decode(release.message)
    sealer = StreamSealer(NODE.accept(envelope.enc, info=b"cloister weights key v1").response, envelope.enc)
    with pytest.raises(ChannelBroken, match="does not say"):
        release.confirm(sealer.head(b"refused") + sealer.end())


def test_a_release_is_no_request_and_a_request_no_release() -> None:
    release = Envelope.decode(release_to(NODE.public, KEY).message)
    with pytest.raises(ChannelBroken):
        open_request(NODE.accept(release.enc).request, release.enc, release.request)
    enc, keys = address_to(NODE.public)
    with pytest.raises(ChannelBroken):
        receive_release(NODE, Envelope(NODE.key_id, enc, seal_request(keys.request, enc, KEY)).encode())


def test_every_altered_byte_of_a_release_is_seen() -> None:
    message = release_to(NODE.public, KEY).message
    for at in range(len(message)):
        altered = bytearray(message)
        altered[at] ^= 1
        with pytest.raises(ChannelBroken):
            receive_release(NODE, bytes(altered))


def test_another_node_and_a_key_of_another_length() -> None:
    with pytest.raises(ChannelKeyUnknown):
        receive_release(ChannelKey.generate(), release_to(NODE.public, KEY).message)
    with pytest.raises(ChannelBroken, match="32 bytes, not 31"):
        receive_release(NODE, release_to(NODE.public, KEY[:31]).message)
    with pytest.raises(ChannelBroken, match="at most"):
        receive_release(NODE, bytes(5000))


@given(st.binary(max_size=800))
def test_anything_else_is_channel_broken(data: bytes) -> None:
    with pytest.raises(ChannelBroken):
        receive_release(NODE, data)
