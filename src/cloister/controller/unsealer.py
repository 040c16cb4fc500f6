"""`python -m cloister.controller.unsealer FD` decrypts a provider's weights into a folder in memory and ends. Once the
weights are packed it removes the parameters' files and locks the folder. If anything is not as the provider sealed it,
this process ends and the folder with it."""

import socket
from pathlib import Path

from cloister.controller.memory_folder import MemoryFolder
from cloister.errors import ProtocolError
from cloister.messages.controller_unsealer import Locked, Packed, ToUnsealer, Unseal, Unsealed
from cloister.messages.lifecycle import start_failed
from cloister.messages.types import VERSION
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child
from cloister.sealed_weights.file import WeightsBundle
from cloister.sealed_weights.header import read_provider_key

PARAMETERS = ".safetensors"


def serve(line: BlockingEndpoint[Unseal | Packed]) -> None:
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
            return  # the controller has ended or hung up
        folder.remove(PARAMETERS)
        folder.lock()
        line.send(Locked())
    except Exception as reason:
        line.send(start_failed(reason, "The weights cannot be unsealed"))


def unseal(order: Unseal) -> MemoryFolder:
    bundle = WeightsBundle.open(Path(order.path), read_provider_key(order.provider))
    try:
        folder = MemoryFolder(bundle.header.total_bytes, len(bundle.header.files))
        bundle.unpack(order.content_key, lambda file: folder.create(file.name))
    finally:
        bundle.close()
    return folder


ROLE = "unsealer"


def main(control: socket.socket) -> None:
    serve(BlockingEndpoint(control, ToUnsealer))


if __name__ == "__main__":
    main(begin_child(ROLE))
