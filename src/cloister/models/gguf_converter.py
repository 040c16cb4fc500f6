"""The converter: `python -m cloister.models.gguf_converter FD` fills a folder with a GGUF file's model and ends."""

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from cloister.files import sha256_of, sync
from cloister.messages.cli_converter import ConversionProgress, Convert, Converted
from cloister.messages.lifecycle import StartFailed, start_failed
from cloister.models.convert import FILE_NAME, FileRecord, Manifest, writing_to
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child

ROLE = "converter"


def fill_folder(order: Convert, progress: Callable[[float], None]) -> None:
    # Loading torch and transformers takes seconds: not when this module is only imported.
    from cloister.models.gguf_file import GgufFile

    gguf, folder = Path(order.gguf), Path(order.folder)
    source = GgufFile(gguf)
    source.write_description(folder)
    source.write_weights(folder / "model.safetensors", progress)
    files = {path.name: FileRecord(path.stat().st_size, sha256_of(path)) for path in sorted(folder.iterdir())}
    manifest = Manifest(order.name, gguf.name, order.sha256, "bf16", files)
    (folder / FILE_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    for path in (*folder.iterdir(), folder):
        sync(path)


def serve(control: BlockingEndpoint[Convert]) -> None:
    if (order := control.next()) is None:
        return
    try:
        with writing_to(Path(order.folder).parent):
            fill_folder(order, lambda part: control.send(ConversionProgress(part)))
        said: Converted | StartFailed = Converted()
    except Exception as reason:
        said = start_failed(reason, f"{order.name} cannot be converted")
    control.send(said)


def main(control: socket.socket) -> None:
    serve(BlockingEndpoint(control, Convert))


if __name__ == "__main__":
    main(begin_child(ROLE))
