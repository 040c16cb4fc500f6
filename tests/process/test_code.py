"""Code that is loaded once: what is forked from it, what it inherits, and that a changed file changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from cloister.errors import ServiceUnavailable
from cloister.messages.generation import Cancel
from cloister.process.child import inherit_everywhere
from cloister.process.code import Code
from cloister.process.handle import ModuleHandle

ENTRY = """
import os, time
from cloister.messages.generation import Cancel
from cloister.process.blocking import BlockingEndpoint

ROLE = "test"
CODE = ("code_of_it",)


def main(control):
    import code_of_it

    peer = BlockingEndpoint(control, Cancel)
    peer.send(Cancel(code_of_it.NUMBER))
    while (message := peer.next()) is not None:
        peer.send(Cancel(len(os.listdir("/proc/self/fd")) - 1 if message.request_id == 0 else os.getppid()))
"""


@asynccontextmanager
async def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Code]:
    (folder / "an_entry.py").write_text(ENTRY)
    (folder / "code_of_it.py").write_text("NUMBER = 1")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    code = Code(("an_entry",))
    try:
        yield code
    finally:
        await code.close()


class Talk:
    """A process of that entry."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[int] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.handle = ModuleHandle(
            "test",
            "an_entry",
            Cancel,
            _Never,
            handle=self._hear,
            on_end=self.ended.set,  # type: ignore[type-var]
        )

    def _hear(self, message: Cancel) -> None:  # type: ignore[override]
        self.heard.put_nowait(message.request_id)

    async def process(self) -> psutil.Process:
        """It may speak before the template has told us who it is. psutil takes None for ourselves!"""
        async with asyncio.timeout(30):
            while (pid := self.handle.pid) is None:
                await asyncio.sleep(0.01)
        return psutil.Process(pid)

    async def ask(self, number: int) -> int:
        self.handle.send(Cancel(number))
        return await asyncio.wait_for(self.heard.get(), 30)


class _Never:
    pass


def _lives(pid: int | None) -> bool:
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_code_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with loaded(tmp_path, monkeypatch):
        first = Talk()
        assert await asyncio.wait_for(first.heard.get(), 30) == 1
        (tmp_path / "code_of_it.py").write_text("NUMBER = 2")
        (tmp_path / "an_entry.py").write_text("raise SystemExit(9)")
        (await first.process()).kill()
        await asyncio.wait_for(first.ended.wait(), 30)
        again = Talk()
        assert await asyncio.wait_for(again.heard.get(), 30) == 1, "the code that was there at the start"
        assert (await again.process()).cmdline()[0] == "cloister test"
        await again.handle.close()


async def test_a_child_has_what_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with loaded(tmp_path, monkeypatch):
        first = Talk()
        await asyncio.wait_for(first.heard.get(), 30)
        assert await first.ask(0) == 4, "three standard descriptors and its socket"
        inherit_everywhere(folder := os.open(tmp_path, os.O_RDONLY))
        try:
            second = Talk()
            await asyncio.wait_for(second.heard.get(), 30)
            assert await second.ask(0) == 5
            assert os.readlink(f"/proc/{(await second.process()).pid}/fd/{folder}") == str(tmp_path)
        finally:
            inherit_everywhere(None)
            os.close(folder)
        await first.handle.close()
        await second.handle.close()


async def test_a_child_told_to_end_before_it_exists_never_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with loaded(tmp_path, monkeypatch):
        early = Talk()  # the template is still loading
        await asyncio.wait_for(early.handle.close(60.0, terminate=True), 30)
        assert not _lives(early.handle.pid)


async def test_without_its_template_nothing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with loaded(tmp_path, monkeypatch) as code:
        first = Talk()
        await asyncio.wait_for(first.heard.get(), 30)
        os.kill(await first.ask(1), signal.SIGKILL)
        with pytest.raises(ServiceUnavailable, match="holds the node's code"):
            await asyncio.wait_for(code.lost(), 30)
        await asyncio.wait_for(first.ended.wait(), 30)
        orphan = Talk()
        with pytest.raises(ServiceUnavailable):
            await asyncio.wait_for(orphan.handle.ready, 30)
        await asyncio.wait_for(orphan.handle.ends(), 30)


async def test_who_waits_for_code_that_loads_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a node that is told to stop while it loads need not load to the end."""
    (tmp_path / "slow_entry.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    code = Code(("slow_entry",))
    unborn = ModuleHandle("test", "slow_entry", Cancel, _Never)  # type: ignore[type-var]
    async with asyncio.timeout(30):
        await code.close()
        await unborn.close(600)
        await code.close()
    assert unborn.pid is None
