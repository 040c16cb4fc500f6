"""The clerk as a process: `python -m cloister.mpc.clerk_process FD`, started by the controller.

Joins the controller's socket, the tokenizer and the parties. It prints nothing that came from a request.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.process.hardening import begin_child

if TYPE_CHECKING:
    import msgspec

    from cloister.messages.clerk import StartClerk
    from cloister.mpc.clerk import Clerk

READY_S = 120.0
"""How long parties may take to be ready; they may just be loading the weights."""


def main() -> None:
    """Harden first, then import what is heavy."""
    control = begin_child("clerk")
    from cloister.mpc.clerk_seal import forbid_writing_and_executing

    forbid_writing_and_executing()
    with suppress(OSError):  # the controller hung up while we spoke
        asyncio.run(serve(control))


async def serve(controller: socket.socket) -> None:
    """Serve until the controller hangs up."""
    from cloister.messages.clerk import StartClerk, ToClerk
    from cloister.messages.failure import start_failed
    from cloister.messages.frames import FrameReader, encode_frame

    reader, writer = await asyncio.open_connection(sock=controller)
    frames: FrameReader[msgspec.Struct] = FrameReader(ToClerk)
    clerk: Clerk | None = None

    def say(message: msgspec.Struct) -> None:
        writer.write(encode_frame((message,)))

    while data := await reader.read(1 << 18):
        for message in frames.feed(data):
            if clerk is not None:
                clerk.hear(message)  # type: ignore[arg-type]
            elif isinstance(message, StartClerk):
                try:
                    clerk = await _start(message, say)
                except Exception as reason:
                    say(start_failed(reason, "The clerk cannot start"))
            else:
                return
    if clerk is not None:
        await clerk.close()


async def _start(start: StartClerk, say: object) -> Clerk:
    from cloister.errors import ProtocolError
    from cloister.messages.clerk import ClerkReady
    from cloister.messages.generation import VERSION
    from cloister.models.source import open_folder
    from cloister.mpc.clerk_parties import make_clerk, reach_parties

    if start.version != VERSION or not callable(say):
        raise ProtocolError("The controller is of another version.")
    parties = await reach_parties(Path(start.parties), READY_S)
    clerk = make_clerk(
        parties,
        open_folder(Path(start.path), start.name),
        say,
        max_context=start.max_context,
        vocabulary=start.vocabulary,
        draft_tokens=start.draft_tokens,
    )
    say(ClerkReady(VERSION))
    return clerk


if __name__ == "__main__":
    main()
