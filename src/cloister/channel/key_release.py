"""The key of sealed weights on its way to a node whose evidence was verified.

A release is an HPKE message to the node's channel key, under a purpose of its own, so that none can be taken for a
user's request. The node's answer is sealed too: only who opened the release can say that it was taken.
"""

from __future__ import annotations

from typing import NamedTuple

from cloister.channel.envelope import Envelope
from cloister.channel.keys import KEY_BYTES, ChannelKey, address_to, key_id
from cloister.channel.sealing import open_request, seal_request
from cloister.channel.stream import FrameKind, StreamOpener, StreamSealer
from cloister.errors import ChannelBroken, ChannelKeyUnknown

MAX_RELEASE_BYTES = 4096
_INFO = b"cloister weights key v1"
_TAKEN = b"taken"


class Release(NamedTuple):
    """What to send to the node, and what opens its answer."""

    message: bytes
    opener: StreamOpener

    def confirm(self, answer: bytes) -> None:
        """ChannelBroken unless the holder of the channel key says that it took the key."""
        frames = self.opener.feed(answer)
        self.opener.finish()
        if frames[0].kind is not FrameKind.HEAD or frames[0].data != _TAKEN:
            raise ChannelBroken("The node's answer does not say that it took the key.")


def release_to(channel_key: bytes, content_key: bytes) -> Release:
    """The content key, sealed to the holder of this channel key. Verify the node's evidence first."""
    enc, keys = address_to(channel_key, info=_INFO)
    sealed = seal_request(keys.request, enc, content_key)
    opener = StreamOpener(bytearray(keys.response), enc)
    keys.erase()
    return Release(Envelope(key_id(channel_key), enc, sealed).encode(), opener)


def receive_release(channel_key: ChannelKey, message: bytes) -> tuple[bytearray, bytes]:
    """The content key, and the answer to send once it proved to be the right one; or ChannelBroken."""
    if len(message) > MAX_RELEASE_BYTES:
        raise ChannelBroken(f"A key release has at most {MAX_RELEASE_BYTES} bytes.")
    envelope = Envelope.decode(message)
    if envelope.key_id != channel_key.key_id:
        raise ChannelKeyUnknown("This node does not hold the key the release was sealed to.", hint="Verify it anew.")
    if envelope.prompts:
        raise ChannelBroken("A key release holds no prompts.")
    keys = channel_key.accept(envelope.enc, info=_INFO)
    try:
        content_key = bytearray(open_request(keys.request, envelope.enc, envelope.request))
        if len(content_key) != KEY_BYTES:
            raise ChannelBroken(f"A content key has {KEY_BYTES} bytes, not {len(content_key)}.")
        sealer = StreamSealer(keys.response, envelope.enc)
        return content_key, sealer.head(_TAKEN) + sealer.end()
    finally:
        keys.erase()
