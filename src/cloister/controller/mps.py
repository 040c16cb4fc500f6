"""NVIDIA's Multi-Process Service, started and watched. What it shares, what a client's fault does: docs/gpu.md."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cloister.config import Settings
from cloister.errors import SetupError
from cloister.process.child import Child, environment
from cloister.process.hardening import die_with_parent
from cloister.process.sandbox.credentials import UNPRIVILEGED

log = logging.getLogger(__name__)
DAEMON = "nvidia-cuda-mps-control"
DEVICE = "/dev/nvidiactl"
VISIBLE = "CUDA_VISIBLE_DEVICES"  # which GPUs a process sees; empty or -1, none
START_S, ORDER_S = 10.0, 5.0
# how long a client that was hung up on may take to end, and how often we look: where many come and go at once, a
# context takes seconds to be made and to go
GRACE_S, LOOK_S = 5.0, 0.01
KILLED_S = 0.5
TRIES, AGAIN_S = 5, 0.2  # of an order that the daemon drops


def mps_for(settings: Settings) -> "Mps | None":
    """Where a GPU may compute, not in turns, and MPS is installed."""
    engine = settings.engine
    wanted = engine.kernels in ("auto", "gpu") and engine.dtype == "bf16" and engine.weights == "as-dtype"
    wanted = wanted and not settings.controller.gpu_in_turns
    hidden = os.environ.get(VISIBLE, "all").strip() in ("", "-1")
    daemon = shutil.which(DAEMON) if wanted and not hidden and os.path.exists(DEVICE) else None
    return None if daemon is None else Mps(daemon)


class Mps:
    """One daemon, in a folder that outlives it: processes started later meet the next daemon there."""

    def __init__(self, daemon: str) -> None:
        self._command = daemon
        self.folder = tempfile.mkdtemp(prefix="cloister-mps-")
        self._folder = Path(self.folder)
        self._ending: set[asyncio.Task[None]] = set()
        self._ordering = asyncio.Lock()
        self._daemon: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        if os.geteuid() == 0:  # its clients run as this user, and so does the server it starts for them
            os.chown(self._folder, UNPRIVILEGED, UNPRIVILEGED)

    async def start(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called if it ends before `close`; nothing computes on the GPU then, until it is started again."""
        for left in self._folder.iterdir():
            with suppress(OSError):
                left.unlink()
        self._daemon = await asyncio.create_subprocess_exec(
            *(self._command, "-f"),
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            async with asyncio.timeout(START_S):
                while not (self._folder / "control").exists():
                    if self._daemon.returncode is not None:
                        raise SetupError("NVIDIA's MPS ended while it started.", hint="Compute with --kernels native.")
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise SetupError("NVIDIA's MPS does not start.", hint="Compute with --kernels native.") from None
        self._watching = asyncio.create_task(self._watch(self._daemon, on_end))

    @property
    def running(self) -> bool:
        return self._daemon is not None and self._daemon.returncode is None

    def end(self, client: Child, then: Callable[[], None]) -> None:
        """Not by a signal while its kernel runs, which would end all clients. `then` runs when it has ended."""
        task = asyncio.create_task(self._end(client, then))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def ended(self) -> None:
        """After a fault, new clients are refused until all old ones are gone."""
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def close(self) -> None:
        await self.ended()
        if self._watching is not None:
            self._watching.cancel()
        if self._daemon is not None and self._daemon.returncode is None:
            await self._order("quit -t 1")
            with suppress(ProcessLookupError):
                self._daemon.kill()
            await self._daemon.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _watch(self, daemon: asyncio.subprocess.Process, on_end: Callable[[], None]) -> None:
        await daemon.wait()
        on_end()

    async def _end(self, client: Child, then: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(GRACE_S):
                while not client.ended:
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            await self._terminate(client)
        finally:
            client.kill(KILLED_S)
            then()

    async def _terminate(self, client: Child) -> None:
        """One at a time: the daemon listens to one order and drops all others. An order that was dropped meant a
        signal to a client whose kernel ran: a fault, which ended all (docs/gpu.md)."""
        async with self._ordering:
            for _ in range(TRIES):
                servers = (await self._order("get_server_list")).split()
                if client.ended or client.pid is None:
                    return
                said = [await self._order(f"terminate_client {server} {client.pid}") for server in servers]
                if any(said):
                    return
                await asyncio.sleep(AGAIN_S)

    async def _order(self, command: str) -> str:
        """Empty if the daemon does not answer."""
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            asking = await asyncio.create_subprocess_exec(
                self._command, env=self._environment(), stdin=pipe, stdout=pipe, stderr=null, start_new_session=True
            )
        except OSError:
            return ""
        try:
            async with asyncio.timeout(ORDER_S):
                return (await asking.communicate(command.encode() + b"\n"))[0].decode(errors="replace")
        except TimeoutError:
            asking.kill()
            return ""

    def _environment(self) -> dict[str, str]:
        return environment(CUDA_MPS_PIPE_DIRECTORY=self.folder, CUDA_MPS_LOG_DIRECTORY=self.folder)
