"""Atheris harness: whatever a node, somebody between or a local program sends, the client's parsers stay within bounds.

Run it by hand for as long as you like: `python tests/fuzz/client_parsers.py -max_total_time=600`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, from any folder

with atheris.instrument_imports(include=["cloister.client"]):
    from cloister.addresses import HttpAddress
    from cloister.channel.stream import StreamOpener
    from cloister.client.message import PROMPT_FIELDS, SealedAnswer, read_refusal, split_prompts
    from cloister.client.winnow import IndexSecrets
    from cloister.errors import ChannelBroken, InvalidRequest, SetupError
    from tests.client.test_local_request import read


def read_requests(data: bytes) -> None:
    read(data, 61)


def split(data: bytes) -> None:
    secrets = IndexSecrets()
    for path in PROMPT_FIELDS:
        with contextlib.suppress(InvalidRequest):
            split_prompts("POST", path, (("x-cloister-protection", "open"),), data, secrets)
            split_prompts("POST", path, (), data, secrets)


def refusal(data: bytes) -> None:
    status = 300 + data[0] if data else 200
    read_refusal(status, data[1:8].decode("latin-1"), data[8:])


def answer(data: bytes) -> None:
    opened = SealedAnswer(StreamOpener(bytearray(32), bytes(32)))
    opened.feed(data)
    opened.finish()


PARSERS = [read_requests, split, refusal, answer, lambda data: HttpAddress.parse(data.decode("utf-8", "replace"))]


def one_input(data: bytes) -> None:
    if not data:
        return
    with contextlib.suppress(ChannelBroken, InvalidRequest, SetupError):
        PARSERS[data[0] % len(PARSERS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
