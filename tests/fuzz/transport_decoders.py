"""Atheris harness: whatever bytes come, the decoders of the channel give a value or the one error they may.

Run it by hand for as long as you like: `python tests/fuzz/transport_decoders.py -max_total_time=600`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["cloister.channel"]):
    from cloister.channel.envelope import Envelope, InnerHead, InnerRequest, receive_release
    from cloister.channel.sealing import ChannelKey, open_prompt, open_request, unpad
    from cloister.channel.stream import StreamOpener
    from cloister.errors import ChannelBroken, ModelCorrupt
    from cloister.sealed_weights.file import MAGIC, WeightsBundle, read_header
    from cloister.transparency.note import Note, SigningKey

NODE = ChannelKey.generate()
KEY, ENC = bytes(32), bytes(range(32))
PROVIDER = SigningKey.generate("provider.example/weights")
FILE = tempfile.TemporaryFile()  # noqa: SIM115


def open_stream(data: bytes) -> None:
    opener = StreamOpener(bytearray(KEY), ENC)
    for at in range(0, len(data), 97):
        opener.feed(data[at : at + 97])
    opener.finish()


def open_bundle(data: bytes) -> None:
    FILE.truncate(0)
    os.pwrite(FILE.fileno(), MAGIC + data, 0)
    FILE.seek(0)
    WeightsBundle(FILE, PROVIDER.verifier)


def open_signed_header(data: bytes) -> None:
    """As if the provider had signed nonsense."""
    text = "cloister sealed weights v1\n" + data.decode("utf-8", "replace") + "\n"
    read_header(str(Note(text, (PROVIDER.sign(text),))), PROVIDER.verifier)


DECODERS = [
    Envelope.decode,
    InnerRequest.decode,
    InnerHead.decode,
    unpad,
    open_stream,
    lambda data: open_request(KEY, ENC, data),
    lambda data: open_prompt(KEY, ENC, 0, data),
    lambda data: receive_release(NODE, data),
    open_bundle,
    open_signed_header,
    NODE.accept,
]


def one_input(data: bytes) -> None:
    if data:
        with contextlib.suppress(ChannelBroken, ModelCorrupt):
            DECODERS[data[0] % len(DECODERS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
