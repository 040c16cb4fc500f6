"""Where another engine decodes: its process speaks the service's wire. Beside it are our vaults, or, for a model that
our own engine does not know, nothing: a prompt has no other reader then."""

import asyncio
import hashlib
import socket
from collections.abc import Callable
from pathlib import Path

from cloister.attest.evidence import NodeEvidence
from cloister.config import Settings
from cloister.controller.compute_processes import ComputeProcesses
from cloister.controller.external_engine import ExternalEngine
from cloister.controller.forkserver import ForkServer
from cloister.controller.relay import Relay
from cloister.controller.service import Service, Starter
from cloister.files import sha256_of
from cloister.levels import Decodes
from cloister.link.memory import LinkShape
from cloister.messages.controller_engine import StartEngine
from cloister.messages.controller_forkserver import Preloaded
from cloister.messages.frames import encode_frame
from cloister.messages.generation import Ready
from cloister.models.source import ModelFolder
from cloister.placement import Role
from cloister.process.child import Child, ProgramChild, environment, run_command
from cloister.process.hardening import WIPE_FREED_MEMORY
from cloister.process.supervisor import Supervisor
from cloister.process.watchdog import SILENT

START_S = 900.0  # it imports and loads much
WAIT_FOR_THE_KILLED_S = 2.0
_OF_OUR_ENVIRONMENT = ("PYTHONPATH", "LD_LIBRARY_PATH")
FOLDER_DOMAIN = b"cloister model folder v1\0"


def digest_of_folder(path: Path) -> bytes:
    """Over the names and contents of all files: the engine reads the folder itself."""
    files = sorted(each for each in path.rglob("*") if each.is_file())
    lines = (f"{sha256_of(each)} {each.relative_to(path).as_posix()}\n" for each in files)
    return hashlib.sha256(FOLDER_DOMAIN + "".join(lines).encode()).digest()


class FolderDigest:
    """Read once, in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading: asyncio.Task[bytes] | None = None

    def begin(self) -> asyncio.Task[bytes]:
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(digest_of_folder, self._path))
        return self._reading

    async def read(self) -> bytes:
        return await asyncio.shield(self.begin())

    async def close(self) -> None:
        if self._reading:
            await asyncio.wait((self._reading,))


class Program:
    """Starts the engine's program; the order for the model is written before it runs."""

    def __init__(self, command: list[str], order: StartEngine) -> None:
        self._command, self._order = command, order

    def spawn(self, role: Role) -> tuple[Child, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.sendall(encode_frame((self._order,)))
        variables = {k: v for k, v in environment(**WIPE_FREED_MEMORY).items() if k not in _OF_OUR_ENVIRONMENT}
        return ProgramChild(run_command([*self._command, str(theirs.fileno())], theirs, variables)), ours


def program_of(engine: ExternalEngine, folder: ModelFolder, settings: Settings) -> Program:
    given = settings.engine.model_dump_json().encode()
    degraded = settings.controller.allow_degraded_sandbox
    return Program(engine.command(), StartEngine(folder.name, str(folder.path.absolute()), given, degraded))


class EngineAndVaults(ComputeProcesses):
    """The vaults compute on a CPU, as our own engine's."""

    def __init__(
        self,
        engine: ExternalEngine,
        folder: ModelFolder,
        settings: Settings,
        relay: Relay,
        on_up: Callable[[], None],
        on_down: Callable[[Decodes], None],
    ) -> None:
        native = settings.engine.model_copy(update={"kernels": "native"})
        of_vaults = settings.model_copy(update={"engine": native})
        super().__init__(folder, of_vaults, relay, _on_this_machine, on_up=on_up, on_down=on_down)
        self._program = program_of(engine, folder, settings)
        self._of_engine = FolderDigest(folder.path)

    async def weights_digest(self) -> bytes:
        """Of what the engine reads; the vaults' weights are made of the same files."""
        return await self._of_engine.read()

    async def close(self) -> None:
        await super().close()
        await self._of_engine.close()

    def _starter(self, forkserver: ForkServer) -> tuple[Starter, float]:
        return self._program, START_S


async def _on_this_machine(weights: int, shape: LinkShape) -> None:
    return None


class EngineProcess:
    """As ComputeProcesses, without vaults: `on_up` when the engine has started, `on_down` when it ended."""

    has_vault_host = has_vaults = False

    def __init__(
        self,
        engine: ExternalEngine,
        folder: ModelFolder,
        settings: Settings,
        relay: Relay,
        on_up: Callable[[], None],
        on_down: Callable[..., None],
    ) -> None:
        self._relay, self._on_up, self._on_down = relay, on_up, on_down
        self._program = program_of(engine, folder, settings)
        self._patience = SILENT["service"].beyond(settings.controller.service_deadline_s)
        self._supervisor = Supervisor(f"engine {settings.engine.kind}", self._start)
        self._digest = FolderDigest(folder.path)
        self.service: Service | None = None
        self.preloaded: Preloaded | None = Preloaded(0, 0, 0, partitionable=False)
        self.ready: Ready | None = None

    def launch(self) -> None:
        """It starts with `start`: none of it can be loaded before."""

    async def start(self) -> None:
        self._digest.begin()
        await self._supervisor.start()

    def keep(self) -> None:
        self._supervisor.keep()

    async def close(self) -> None:
        await self._supervisor.close()
        if self.service is not None:
            self.service.close(WAIT_FOR_THE_KILLED_S)
        await self._digest.close()

    async def weights_digest(self) -> bytes:
        return await self._digest.read()

    async def vault_host_evidence(self, nonce: bytes) -> dict[str, NodeEvidence]:
        return {}

    async def _start(self) -> None:
        service = Service(self._program, self._relay.from_service, self._ended, self._patience)
        try:
            self.ready = await service.ready(START_S)
        except BaseException:
            service.close()
            raise
        self.service = service
        self._relay.service_up(service)
        self._on_up()

    def _ended(self) -> None:
        self._on_down(Decodes.SERVICE)
        if self.service is not None:
            self.service.close()
            self.service = None
        self._relay.service_gone()
        self._supervisor.ended()
