"""The unsealer: `python -m cloister.controller.unsealer FD` decrypts a provider's weights into memory and ends.

It sends the controller the descriptor of a folder that lies in memory alone, with the model in it; once the weights are
packed it takes the parameters' files out and locks the folder. Nothing is ever written to a disk: if anything is not as
the provider sealed it, this process ends and the folder with it.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from cloister.controller.memory_folder import MemoryFolder
from cloister.errors import ProtocolError
from cloister.messages.failure import start_failed
from cloister.messages.generation import VERSION
from cloister.messages.unsealing import Locked, Packed, ToUnsealer, Unseal, Unsealed
from cloister.process.hardening import die_with_parent, forbid_core_dumps, hide_tracebacks
from cloister.process.line import Line
from cloister.sealed_weights.file import WeightsBundle
from cloister.sealed_weights.header import read_provider_key

PARAMETERS = ".safetensors"


def serve(line: Line[Unseal | Packed]) -> None:
    """One file, then the end."""
    order = line.next()
    if order is None:
        return
    try:
        if not isinstance(order, Unseal) or order.version != VERSION:
            raise ProtocolError("The unsealer was started by a controller of another version.")
        folder = unseal(order)
        del order
        line.send(Unsealed(), folder.descriptor)
        if line.next() is None:
            return  # the controller is gone, or gave up
        folder.remove(PARAMETERS)
        folder.lock()
        line.send(Locked())
    except Exception as reason:
        line.send(start_failed(reason, "The weights cannot be unsealed"))


def unseal(order: Unseal) -> MemoryFolder:
    """The model in a folder in memory, whole and as the provider signed it."""
    bundle = WeightsBundle.open(Path(order.path), read_provider_key(order.provider))
    try:
        folder = MemoryFolder(bundle.header.total_bytes, len(bundle.header.files))
        forbid_core_dumps()  # not before: the kernel lets no such process map its own ids
        bundle.unpack(order.content_key, lambda file: folder.create(file.name))
    finally:
        bundle.close()
    return folder


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_tracebacks()
    die_with_parent()
    serve(Line(socket.socket(fileno=int(sys.argv[1])), ToUnsealer))


if __name__ == "__main__":
    main()
