"""The packer: packs a model's weights into a memory file, which its caller seals, and ends. It sees no prompt."""

import socket
from pathlib import Path

from cloister.config import EngineSettings
from cloister.cores import usable_cores
from cloister.errors import SetupError, where_raised
from cloister.messages.controller_packer import Start, WeightsPacked
from cloister.messages.lifecycle import StartFailed, start_failed
from cloister.models.memory_file import gather_into_large_pages
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child

ROLE = "packer"
_PARTS = ("decoder", "load", "sealed", "source", "weights")
CODE = ("cloister.compute.choose", *(f"cloister.models.{name}" for name in _PARTS))


def pack_weights(start: Start, fd: int) -> int:
    """Returns the file's length."""
    # Loading torch and transformers takes seconds: not when this module is only imported.
    import torch

    from cloister.compute.choose import choose_device
    from cloister.models.decoder import RawParts
    from cloister.models.load import build_decoder
    from cloister.models.sealed import PartsWriter
    from cloister.models.source import open_folder
    from cloister.models.weights import open_weights

    torch.set_num_threads(usable_cores())  # no other process computes yet
    settings = EngineSettings.model_validate_json(start.settings)
    device = choose_device(settings)
    folder = open_folder(Path(start.path), start.name)
    writer = PartsWriter(RawParts(open_weights(folder), device.kernels), device.kernels, fd)
    build_decoder(folder, writer, device, settings.max_context)
    length = writer.finish()
    gather_into_large_pages(fd, length)
    return length


def serve(control: BlockingEndpoint[Start]) -> None:
    if (start := control.next()) is None:
        return
    [fd] = control.take_descriptors(1)
    try:
        said: WeightsPacked | StartFailed = WeightsPacked(pack_weights(start, fd))
    except (OSError, MemoryError) as failure:
        room = "The weights must fit into memory once: make room, or choose a smaller model or --weights int8."
        said = StartFailed(SetupError.code, f"The weights cannot be packed: {where_raised(failure)}.", room)
    except Exception as reason:
        said = start_failed(reason, "The weights cannot be packed")
    control.send(said)


def main(control: socket.socket) -> None:
    serve(BlockingEndpoint(control, Start))


if __name__ == "__main__":
    main(begin_child(ROLE))
