"""The client as a process: `python -m cloister_mpc.client.process FD`, started by the controller."""

import asyncio
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.process.hardening import begin_child
from cloister.process.sandbox import kernel, landlock

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from cloister_mpc.client.client import Client
    from cloister_mpc.controller_messages import StartMpcClient

READY_S = 120.0  # how long parties may take to be ready; they may just be loading the weights


def main() -> None:
    """Harden first, then import what is heavy."""
    control = begin_child("mpc-client")
    forbid_writing_and_executing()
    from cloister.process.numpy_memory import use_pythons_memory

    use_pythons_memory()
    with suppress(OSError):  # the controller hung up while we spoke
        asyncio.run(serve(control))


def forbid_writing_and_executing() -> bool:
    """Holds for this thread and those it starts, so call it before others start. Whether the kernel could do it."""
    tempfile.tempdir = os.devnull  # libraries ask for the folder's name when imported, and would look for one to write
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    return landlock.only_read(network=True)


async def serve(controller: socket.socket) -> None:
    from cloister.messages.lifecycle import Ping, Pong, start_failed
    from cloister_mpc.connection import Connection
    from cloister_mpc.controller_messages import StartMpcClient, ToMpcClient

    connection = Connection(*await asyncio.open_connection(sock=controller), ToMpcClient)
    start = await connection.receive()
    if not isinstance(start, StartMpcClient):
        return
    try:
        client = await _start(start, connection.post)
    except Exception as reason:
        connection.post(start_failed(reason, "The client cannot start"))
        return
    while (message := await connection.receive()) is not None:
        if isinstance(message, Ping):
            connection.post(Pong())
        else:
            client.handle(message)  # type: ignore[arg-type]
    await client.close()


async def _start(start: "StartMpcClient", say: "Callable[[msgspec.Struct], None]") -> "Client":
    from cloister.errors import ProtocolError
    from cloister.messages.types import VERSION
    from cloister.models.source import open_folder
    from cloister_mpc.cache.plan import PLANS
    from cloister_mpc.client.client import make_client
    from cloister_mpc.client.passes import ModelAtParties
    from cloister_mpc.controller_messages import MpcClientReady

    if start.version != VERSION:
        raise ProtocolError("The controller is of another version.")
    client = make_client(
        await ModelAtParties.reach(Path(start.parties), READY_S, identity=start.identity, cache=PLANS[start.cache]),
        open_folder(Path(start.path), start.name),
        say,
        max_context=start.max_context,
        vocabulary=start.vocabulary,
        draft_tokens=start.draft_tokens,
    )
    say(MpcClientReady(VERSION))
    return client


if __name__ == "__main__":
    main()
