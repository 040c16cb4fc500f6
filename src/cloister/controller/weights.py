"""One copy of the weights for all processes: packed by a short-lived process into a memory file, which is then
sealed."""

import os

from cloister.config import EngineSettings
from cloister.errors import CloisterError, SetupError
from cloister.messages.controller_packer import FromPacker, Start, WeightsPacked
from cloister.messages.types import VERSION
from cloister.models.memory_file import check_sealed, create_memory_file, reopen_read_only, seal
from cloister.models.source import ModelFolder
from cloister.process.handle import ModuleHandle

PACKER = "cloister.models.pack_weights"


async def seal_weights(folder: ModelFolder, settings: EngineSettings) -> int:
    writable = create_memory_file("cloister-weights")
    try:
        await _pack(folder, settings, writable)
        seal(writable)
        fd = reopen_read_only(writable)
    finally:
        os.close(writable)
    check_sealed(fd)
    return fd


async def _pack(folder: ModelFolder, settings: EngineSettings, fd: int) -> None:
    packer = ModuleHandle("packer", PACKER, FromPacker, WeightsPacked, lost=_lost())
    try:
        packer.send(Start(VERSION, folder.name, str(folder.path), settings.model_dump_json().encode()), (fd,))
        packed = await packer.ready
    finally:
        packer.kill()  # also when cancelled: no packer stays behind with a writable descriptor
        await packer.ends()
    if os.fstat(fd).st_size != packed.length:
        raise _lost()


def _lost() -> CloisterError:
    return SetupError(
        "The process that packs the weights ended before it was done.",
        hint="Perhaps memory ran out: the weights must fit into it once.",
    )
