"""One copy of the weights for all processes: packed by a short-lived process into a memory file, then sealed.

The controller never looks inside: it makes the file, waits for the packer, and makes sure that nothing can change it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE

import msgspec

from cloister.config import EngineSettings
from cloister.errors import CloisterError, SetupError
from cloister.messages.generation import VERSION
from cloister.messages.lifecycle import Start, StartFailed, why_not_started
from cloister.models.memory_file import check_sealed, create_memory_file, reopen_read_only, seal
from cloister.models.source import ModelFolder
from cloister.process.child import environment, inherited
from cloister.process.hardening import signals_held

PACKER = "cloister.models.pack_weights"


async def seal_weights(folder: ModelFolder, settings: EngineSettings) -> int:
    """A read-only descriptor of the model's weights, packed for the kernels of these settings."""
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
    start = Start(VERSION, folder.name, str(folder.path), settings.model_dump_json().encode())
    command = (sys.executable, "-m", PACKER, str(fd))
    with signals_held():
        packer = await asyncio.create_subprocess_exec(
            *command, pass_fds=[fd, *inherited()], stdin=PIPE, stdout=PIPE, env=environment()
        )
    try:
        said, _ = await packer.communicate(msgspec.json.encode(start))
    finally:
        if packer.returncode is None:  # even if we were cancelled, no packer stays behind with a writable descriptor
            packer.kill()
            await packer.wait()
    if packer.returncode or not os.fstat(fd).st_size:
        raise _why(said, packer.returncode)


def _why(said: bytes, status: int | None) -> CloisterError:
    try:
        reason = msgspec.json.decode(said, type=StartFailed)
    except msgspec.MsgspecError:
        return SetupError(
            f"The process that packs the weights ended with status {status}.",
            hint="Perhaps memory ran out: the weights must fit into it once.",
        )
    return why_not_started(reason)
