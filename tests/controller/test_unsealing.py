"""Sealed weights become a folder in memory: packed as if they had lain on a disk, and then nobody can change it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from cloister.config import EngineSettings, Settings
from cloister.controller import provision
from cloister.controller.forkserver import seal_weights
from cloister.controller.provision import Unsealing
from cloister.errors import ModelCorrupt, ServiceUnavailable, SetupError
from cloister.models.source import ModelFolder, open_folder
from cloister.port import bind
from cloister.process.child import _inherited
from cloister.prompts.tokenizer import Tokenizer
from cloister.sealed_weights.file import seal_weights as seal_to_file
from cloister.transparency.note import SigningKey
from tests.forked import forking
from tests.forkserver.model import save_model

KEY = bytes(range(32))
PROVIDER = SigningKey.generate("provider.example/weights")
SETTINGS = EngineSettings(dtype="fp32", threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def sealed(model: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sealed") / "weights"
    files = sorted(file for file in model.path.iterdir() if file.name != "cloister-manifest.json")
    seal_to_file(files, model.name, path, KEY, PROVIDER, chunk_bytes=4096)
    return path


@pytest.fixture
async def unsealing() -> AsyncIterator[Unsealing]:
    one = Unsealing(socket.socket())
    yield one
    await one.close()
    assert not _inherited


async def test_the_packed_weights_are_the_same_as_from_a_disk(
    unsealing: Unsealing, sealed: Path, model: ModelFolder
) -> None:
    key = bytearray(KEY)
    folder = await unsealing.unseal(model.name, sealed, str(PROVIDER.verifier), key)
    assert key == bytes(32), "the controller keeps no key"
    with forking():
        from_memory, from_disk = await seal_weights(folder, SETTINGS), await seal_weights(model, SETTINGS)
    try:
        one, other = (os.pread(each, os.fstat(each).st_size, 0) for each in (from_memory, from_disk))
        assert one == other and len(one) > 10_000
    finally:
        os.close(from_memory)
        os.close(from_disk)


async def test_locked_it_has_no_parameters_and_nobody_can_write(
    unsealing: Unsealing, sealed: Path, model: ModelFolder
) -> None:
    folder = await unsealing.unseal(model.name, sealed, str(PROVIDER.verifier), bytearray(KEY))
    assert any(name.endswith(".safetensors") for name in os.listdir(folder.path))
    await unsealing.lock()
    assert not any(name.endswith(".safetensors") for name in os.listdir(folder.path))
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(OSError, match="Read-only"):
            os.open(folder.path / ("config.json" if flags == os.O_WRONLY else "new"), flags)
    with pytest.raises(OSError, match="Read-only"):
        os.unlink(folder.path / "config.json")
    assert open_folder(folder.path, model.name).config == open_folder(model.path, model.name).config
    assert Tokenizer(open_folder(folder.path, model.name)).encode("hello") == Tokenizer(model).encode("hello")


async def test_only_who_inherits_it_can_reach_it(unsealing: Unsealing, sealed: Path, model: ModelFolder) -> None:
    folder = await unsealing.unseal(model.name, sealed, str(PROVIDER.verifier), bytearray(KEY))
    command = [sys.executable, "-c", f"print(open('{folder.path}/config.json').read()[:1])"]
    told = subprocess.run(command, pass_fds=_inherited, capture_output=True, text=True, check=True)
    assert told.stdout == "{\n"
    assert subprocess.run(command, capture_output=True, check=False).returncode, "it has no path"
    assert str(folder.path) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize("place", [-1, -5000])
async def test_altered_weights_give_nothing(
    unsealing: Unsealing, sealed: Path, model: ModelFolder, tmp_path: Path, place: int
) -> None:
    data = bytearray(sealed.read_bytes())
    data[place] ^= 1
    (tmp_path / "altered").write_bytes(data)
    with pytest.raises(ModelCorrupt, match="was altered"):
        await unsealing.unseal(model.name, tmp_path / "altered", str(PROVIDER.verifier), bytearray(KEY))
    assert not _inherited


async def test_another_providers_weights_or_another_key(unsealing: Unsealing, sealed: Path, model: ModelFolder) -> None:
    other = SigningKey.generate("provider.example/weights")
    with pytest.raises(ModelCorrupt, match="not signed by"):
        await unsealing.unseal(model.name, sealed, str(other.verifier), bytearray(KEY))


async def test_the_wrong_key_is_told(unsealing: Unsealing, sealed: Path, model: ModelFolder) -> None:
    with pytest.raises(SetupError, match="not the one"):
        await unsealing.unseal(model.name, sealed, str(PROVIDER.verifier), bytearray(32))


async def test_an_unsealer_that_dies_is_noticed(unsealing: Unsealing, sealed: Path, model: ModelFolder) -> None:
    unsealing._handle._child.kill()
    with pytest.raises(ServiceUnavailable, match="ended"):
        await unsealing.unseal(model.name, sealed, str(PROVIDER.verifier), bytearray(KEY))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_unprivileged_user_can_make_such_a_folder_too() -> None:
    """By nobody, in a user namespace. What root alone may read (a Python below /root, say) is imported before."""
    program = """
import os, pathlib
from cloister.controller.unsealer import MemoryFolder, path_of
from cloister.process.sandbox.kernel import prctl
os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534), prctl(4, 1)
folder = MemoryFolder(100, 1)
file = folder.create("a")
os.write(file, b"hello"), os.close(file), folder.lock()
print(os.listdir(path_of(folder.descriptor)), (path_of(folder.descriptor) / "a").read_text())
(path_of(folder.descriptor) / "b").touch()
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert told.stdout == "['a'] hello\n" and "Read-only file system" in told.stderr, told.stderr


class Delivered:
    """A delivery whose key has come, at a port that is free again."""

    def __init__(self, *_: object) -> None:
        self.key: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        self.key.set_result(bytearray(32))

    async def open(self) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"http://127.0.0.1:{free.getsockname()[1]}"

    async def close(self) -> None: ...


async def test_the_port_where_the_key_came_is_kept_for_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "Delivery", Delivered)
    _, gateway, kept = await provision._delivered(MagicMock(), Settings(), Console(quiet=True))
    address = ("127.0.0.1", gateway.port)
    with kept, socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(address)
    unsealing = Unsealing(kept := bind(gateway))
    bind(gateway).close()  # the gateway shares it
    await unsealing.close()
    assert kept.fileno() == -1
