"""Atheris harness: whatever bytes come, the decoders of the channel give a value or ChannelBroken.

Run it by hand for as long as you like: `python tests/fuzz/transport_decoders.py -max_total_time=600`.
"""

from __future__ import annotations

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["cloister.transport"]):
    from cloister.errors import ChannelBroken
    from cloister.transport.envelope import Envelope
    from cloister.transport.inner import InnerHead, InnerRequest
    from cloister.transport.keys import ChannelKey
    from cloister.transport.sealing import open_prompt, open_request, unpad
    from cloister.transport.stream import StreamOpener

NODE = ChannelKey.generate()
KEY, ENC = bytes(32), bytes(range(32))


def open_stream(data: bytes) -> None:
    opener = StreamOpener(bytearray(KEY), ENC)
    for at in range(0, len(data), 97):
        opener.feed(data[at : at + 97])
    opener.finish()


DECODERS = [
    Envelope.decode,
    InnerRequest.decode,
    InnerHead.decode,
    unpad,
    open_stream,
    lambda data: open_request(KEY, ENC, data),
    lambda data: open_prompt(KEY, ENC, 0, data),
    NODE.accept,
]


def one_input(data: bytes) -> None:
    if data:
        with contextlib.suppress(ChannelBroken):
            DECODERS[data[0] % len(DECODERS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
