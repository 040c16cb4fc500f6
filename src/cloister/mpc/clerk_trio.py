"""Three parties on this machine and a provider that deals them the model: `python -m cloister.mpc.clerk_trio FD`.

Started by the controller where nobody named parties elsewhere; it never sees a prompt. Ends when the controller hangs
up, and the parties with it.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec
from rich.console import Console

from cloister.errors import CloisterError, ProtocolError
from cloister.messages.clerk import StartTrio, TrioReady
from cloister.messages.failure import start_failed
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import VERSION
from cloister.messages.lifecycle import StartFailed
from cloister.models.source import open_folder
from cloister.mpc.config import Limits, read_config
from cloister.mpc.local import CONFIG_FILE, KEYS, Keys, Supervisor, make_local
from cloister.mpc.serve_weights import serve_weights
from cloister.process.hardening import begin_child

PATIENT = Limits(silence_s=120.0, run_silence_s=900.0)
"""On one machine a party that dies is seen to die; one that is silent may just wait for a core."""


def main() -> None:
    asyncio.run(serve(begin_child("parties")))


async def serve(controller: socket.socket) -> None:
    """Until the controller hangs up."""
    reader, writer = await asyncio.open_connection(sock=controller)
    frames: FrameReader[StartTrio] = FrameReader(StartTrio)

    def say(message: msgspec.Struct) -> None:
        writer.write(encode_frame((message,)))

    asked: list[StartTrio] = []
    while not asked:
        if not (data := await reader.read(1 << 16)):
            return
        asked = frames.feed(data)
    place = Path(asked[0].folder)
    logs = place / "logs"
    logs.mkdir(mode=0o700)
    try:
        if asked[0].version != VERSION:
            raise ProtocolError("The controller is of another version.")
        config = make_local(place, limits=PATIENT)
    except CloisterError as reason:
        say(start_failed(reason, "The parties cannot start"))
        return
    hung_up = asyncio.create_task(reader.read())
    with Supervisor(place / CONFIG_FILE, len(config.party), logs=logs):
        dealing = asyncio.create_task(_deal(asked[0], place))
        await asyncio.wait((dealing, hung_up), return_when=asyncio.FIRST_COMPLETED)
        if dealing.done():
            say(dealing.result())
            await asyncio.wait((hung_up,))  # it may end with an error as well
        else:
            dealing.cancel()


async def _deal(asked: StartTrio, place: Path) -> TrioReady | StartFailed:
    config, quiet = read_config(place / CONFIG_FILE), Console(quiet=True)
    try:
        await serve_weights(config, Keys(place / KEYS).provider, open_folder(Path(asked.path), asked.name), quiet)
    except Exception as reason:
        return start_failed(reason, "The model cannot be dealt")
    return TrioReady(str(place / CONFIG_FILE))


if __name__ == "__main__":
    main()
