"""The packer: `python -m cloister.models.pack_weights FD` packs a model's weights into the file FD and ends.

It reads one `Start` as JSON from standard input. If it fails, it writes one `StartFailed` as JSON to standard output.
It sees a model and settings, never a prompt. Sealing is up to the caller.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from cloister.config import EngineSettings
from cloister.errors import ProtocolError, SetupError, where_raised
from cloister.messages.generation import VERSION
from cloister.messages.lifecycle import Start, StartFailed, start_failed
from cloister.process.hardening import die_with_parent, name_process


def pack_weights(start: Start, fd: int) -> int:
    """Write the model's parts to the file; its length."""
    if start.version != VERSION:
        raise ProtocolError("The packer was started by a controller of another version.")
    # Loading torch and transformers takes seconds: not when this module is only imported.
    from cloister.compute.choose import choose_device
    from cloister.models.decoder import RawParts
    from cloister.models.load import load_decoder
    from cloister.models.sealed import PartsWriter
    from cloister.models.source import open_folder
    from cloister.models.weights import open_weights

    settings = EngineSettings.model_validate_json(start.settings)
    device = choose_device(settings)
    folder = open_folder(Path(start.path), start.name)
    writer = PartsWriter(RawParts(open_weights(folder), device.kernels), device.kernels, fd)
    load_decoder(folder, writer, device, settings.max_context)
    return writer.finish()


def main() -> None:
    name_process("packer")
    die_with_parent()
    try:
        pack_weights(msgspec.json.decode(sys.stdin.buffer.read(), type=Start), int(sys.argv[1]))
    except (OSError, MemoryError) as failure:
        _fail(StartFailed(SetupError.code, f"The weights cannot be packed: {where_raised(failure)}.", _ROOM))
    except Exception as reason:
        _fail(start_failed(reason, "The weights cannot be packed"))


_ROOM = "The weights must fit into memory once: make room, or choose a smaller model or --weights int8."


def _fail(reason: StartFailed) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reason))
    sys.stdout.flush()
    sys.exit(1)


if __name__ == "__main__":
    main()
