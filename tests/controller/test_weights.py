"""A model's weights, sealed once: what cannot be done to them, what they cost, and what a failure leaves."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloister.config import EngineSettings
from cloister.controller import forkserver
from cloister.controller.forkserver import seal_weights
from cloister.errors import ModelNotFound, SetupError
from cloister.messages.controller_packer import WeightsPacked
from cloister.models.memory_file import ReadOnlyMapping, large_page
from cloister.models.source import ModelFolder
from tests.forked import forking
from tests.large_pages import in_large_pages, skip_unless_the_kernel_gives_large_pages

CHILDREN = 4
MAPPERS = Path(__file__).parents[1] / "models" / "many_mappers.py"


@pytest.fixture(scope="module")
def sealed(short_folder: ModelFolder) -> Iterator[int]:
    with forking():
        made = asyncio.run(seal_weights(short_folder, EngineSettings()))
    yield made
    os.close(made)


def test_the_weights_can_be_read_and_not_changed(sealed: int) -> None:
    before = os.pread(sealed, 4096, 0)
    size = os.fstat(sealed).st_size
    assert size > 30_000_000 and not os.get_inheritable(sealed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(sealed, b"x", 0)
    mine = os.open(f"/proc/self/fd/{sealed}", os.O_RDWR)
    for attempt in (
        lambda: os.pwrite(mine, b"x", 0),
        lambda: os.ftruncate(mine, size + 1),
        lambda: os.ftruncate(mine, 0),
        lambda: mmap.mmap(mine, 0, mmap.MAP_SHARED, mmap.PROT_WRITE),
    ):
        with pytest.raises(PermissionError):
            attempt()
    os.close(mine)
    assert os.pread(sealed, 4096, 0) == before


def test_they_lie_in_large_pages(sealed: int) -> None:
    skip_unless_the_kernel_gives_large_pages()
    size = os.fstat(sealed).st_size
    mapping = ReadOnlyMapping(sealed, size)
    assert in_large_pages(mapping, size) == size // large_page() * large_page()
    mapping.close()


def test_many_processes_share_one_copy(sealed: int, short_folder: ModelFolder) -> None:
    command = [sys.executable, str(MAPPERS), str(sealed), str(short_folder.path), str(CHILDREN)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(command, pass_fds=[sealed], capture_output=True, text=True, env=environment, check=True)
    found, size = json.loads(ran.stdout), os.fstat(sealed).st_size
    assert found["all_read"] and found["ended"] == [0] * CHILDREN
    assert all(read > 0.99 * size for read in found["read"]), "each child has all of it in its memory"
    assert sum(found["pss"]) == pytest.approx(size, rel=0.02), "and all together have it once"
    assert found["copied"] == 0
    assert found["grown"] < 40_000_000, "a decoder is built without a copy of its weights"
    assert found["threads"] == 1, "a process that builds a decoder can still fork safely"


async def test_what_stops_the_packer_is_told(tmp_path: Path, short_folder: ModelFolder) -> None:
    (tmp_path / "config.json").write_text((short_folder.path / "config.json").read_text())
    with forking():
        descriptors = os.listdir("/proc/self/fd")
        with pytest.raises(ModelNotFound, match="safetensors"):
            await seal_weights(ModelFolder("empty", tmp_path, {"model_type": "llama"}), EngineSettings())
        with pytest.raises(SetupError, match="int8"):
            await seal_weights(short_folder, EngineSettings(weights="int8", dtype="fp32"))
        assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.parametrize("missing", [1, -1])
async def test_a_file_of_another_length_than_the_packer_says_is_not_given_out(
    short_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    class Packer:
        """Says that it wrote more, or less, than there is."""

        def __init__(self, *_: object, **__: object) -> None:
            self.ready = asyncio.get_running_loop().create_future()

        def send(self, start: object, descriptors: tuple[int]) -> None:
            os.ftruncate(descriptors[0], 4096)
            self.ready.set_result(WeightsPacked(4096 + missing))

        def kill(self) -> None: ...

        async def ends(self) -> None: ...

    monkeypatch.setattr(forkserver, "ModuleHandle", Packer)
    with pytest.raises(SetupError, match="packs the weights ended"):
        await seal_weights(short_folder, EngineSettings())


@pytest.mark.parametrize("module", ["this", "no_such_module"])
async def test_a_packer_that_does_nothing_fails(
    short_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setattr(forkserver, "PACKER", module)
    with pytest.raises(SetupError, match="packs the weights ended"):
        await seal_weights(short_folder, EngineSettings())


async def test_weights_that_cannot_be_sealed_are_not_given_out(
    short_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[mmap.mmap] = []

    async def keep_a_hand_in(folder: ModelFolder, settings: EngineSettings, fd: int) -> None:
        os.ftruncate(fd, 4096)
        kept.append(mmap.mmap(fd, 0))

    monkeypatch.setattr(forkserver, "_pack", keep_a_hand_in)
    with pytest.raises(SetupError, match="cannot be sealed"):
        await seal_weights(short_folder, EngineSettings())
    kept[0].close()


async def test_a_cancelled_start_leaves_no_packer(short_folder: ModelFolder) -> None:
    before = set(psutil.Process().children())
    task = asyncio.create_task(seal_weights(short_folder, EngineSettings()))
    while not (packers := set(psutil.Process().children()) - before):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(packer.is_running() for packer in packers)


def test_the_controller_seals_without_torch() -> None:
    script = "import sys, cloister.controller.forkserver; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
