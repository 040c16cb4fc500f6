"""The node's evidence over a client's nonce. Firmware is slow: one thread asks it, and few clients may wait for it."""

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time_ns
from typing import Literal, Protocol, Self

import msgspec
from msgspec.structs import replace

from cloister.attest.attester import Attester
from cloister.attest.evidence import (
    DOMAIN,
    VERSION,
    GpuEvidence,
    NodeEvidence,
    Statement,
    VaultHostPin,
    bind,
    gpu_nonce,
    write_evidence,
)
from cloister.attest.machine import find_attester
from cloister.channel.ohttp.keys import document_of
from cloister.config import ControllerSettings, VaultHostSettings, cache_folder
from cloister.controller.channel_keys import ShownKey
from cloister.controller.gpu_evidence import GpuEvidenceKeeper
from cloister.errors import CloisterError, QueueFull, SetupError, where_raised
from cloister.messages.controller_gateway import AskEvidence, Evidence
from cloister.messages.lifecycle import failed
from cloister.process import interpreter
from cloister.transparency.log import Log
from cloister.transparency.manifest import differences, measure_running, measurement, read_manifest
from cloister.transparency.proof import Release, development_release, published_manifest
from cloister.transparency.proof import find_release as published_at

MAX_WAITING = 256
DEVELOPMENT = "development-log"
ReachVaultHosts = Callable[[bytes], Awaitable[Mapping[str, NodeEvidence]]]  # their evidence over a nonce, by address


class Asker(Protocol):
    def send(self, message: msgspec.Struct) -> None: ...


class EvidenceMaker:
    """`shown` is the key to seal to. A vault host has another `domain`, and no proof of its release."""

    def __init__(
        self,
        attester: Attester,
        release: Release,
        shown: Callable[[], ShownKey],
        statement: Callable[[], Awaitable[Statement]],
        most: int = MAX_WAITING,
        *,
        gpus: GpuEvidenceKeeper | None = None,
        vault_hosts: ReachVaultHosts | None = None,
        domain: bytes = DOMAIN,
    ) -> None:
        self._attester, self._release = attester, release
        self.tee, self.measurement = attester.tee, release.measurement
        self._shown, self._statement, self._most, self._gpus = shown, statement, most, gpus
        self._vault_hosts, self._domain = vault_hosts, domain
        self._answering: set[asyncio.Task[None]] = set()
        self._instance = secrets.token_bytes(32)  # of this process alone: it has one channel key for all who ask
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evidence_maker")

    @classmethod
    def of(
        cls,
        settings: ControllerSettings | VaultHostSettings,
        packages: Sequence[str],
        shown: Callable[[], ShownKey],
        statement: Callable[[], Awaitable[Statement]],
        *,
        vault_hosts: ReachVaultHosts | None = None,
        domain: bytes = DOMAIN,
    ) -> Self:
        """Of this machine and its release. `packages`: more that run here."""
        attester, release = find_attester(settings.attester), running_release(settings.release, packages)
        gpus = GpuEvidenceKeeper(settings.gpu_evidence)
        return cls(attester, release, shown, statement, gpus=gpus, vault_hosts=vault_hosts, domain=domain)

    async def start(self) -> None:
        """Before any weights are read: a node whose GPUs cannot be shown does not start."""
        if self._gpus is not None:
            await self._gpus.start()

    def answer(self, asker: Asker, asked: AskEvidence) -> None:
        if len(self._answering) >= self._most:
            asker.send(failed(asked.request_id, QueueFull("Too many clients ask for evidence.", retry_after=1)))
            return
        task = asyncio.create_task(self._answer(asker, asked))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def evidence(self, nonce: bytes, since: int = 0) -> NodeEvidence:
        """`since`: how many entries the log had that the client saw last."""
        hosts = await self._vault_hosts(nonce) if self._vault_hosts else {}
        pins = tuple(VaultHostPin(address, one.channel_key) for address, one in hosts.items())
        shown = self._shown()
        until_ms = now_ms() + int(1000 * shown.held_s)
        gpu = await self._show_gpus(nonce, shown.public)
        said = await self._statement()
        code: Literal["release", "unmeasured"] = "unmeasured" if interpreter.running() is None else "release"
        gpus = self._gpus.count if self._gpus else 0
        said = replace(said, code=code, key_until_ms=until_ms, vault_hosts=pins, gpus=gpus)
        if self._domain == DOMAIN:
            oblivious = hashlib.sha256(document_of(shown.public)).digest()
            said = replace(said, oblivious=oblivious, instance=self._instance)
        loop = asyncio.get_running_loop()
        made = await loop.run_in_executor(self._thread, self._make, nonce, since, said, shown.public, gpu)
        return replace(made, vault_hosts=tuple(hosts.values()))

    async def close(self) -> None:
        for task in self._answering:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._gpus is not None:
            await self._gpus.close()

    async def _show_gpus(self, nonce: bytes, channel_key: bytes) -> GpuEvidence | None:
        if self._gpus is None:
            return None
        gpu = await self._gpus.show(gpu_nonce(nonce, channel_key, self.measurement, self._domain))
        if gpu is None and self._gpus.count:
            raise SetupError("The GPUs of this node show nothing.")
        return gpu

    def _make(
        self, nonce: bytes, since: int, said: Statement, channel_key: bytes, gpu: GpuEvidence | None
    ) -> NodeEvidence:
        """The time is stated last, after all waiting: clients compare it with their clocks."""
        statement = msgspec.json.encode(replace(said, made_ms=now_ms()))
        about_gpus = gpu.data if gpu else b""
        bound = bind(nonce, channel_key, self.measurement, about_gpus, statement, self._domain)
        attested = self._attester.attest(bound)
        return NodeEvidence(
            version=VERSION,
            tee=attested.tee,
            report=attested.report,
            channel_key=channel_key,
            measurement=self.measurement,
            statement=statement,
            certificates=attested.certificates,
            collateral=attested.collateral,
            release=self._release.prove(since) if self._domain == DOMAIN else None,
            gpu=gpu,
        )

    async def _answer(self, asker: Asker, asked: AskEvidence) -> None:
        try:
            document = write_evidence(await self.evidence(asked.nonce, asked.since))
            asker.send(Evidence(asked.request_id, document))
        except CloisterError as reason:
            asker.send(failed(asked.request_id, reason))
        except Exception as wrong:
            asker.send(failed(asked.request_id, CloisterError(f"There is no evidence: {where_raised(wrong)}.")))


def now_ms() -> int:
    return time_ns() // 1_000_000


def find_release(log: Path | None, also: Sequence[str] = ()) -> Release:
    """The release in this log whose files run here; without a log, one made here. `also`: more packages that run."""
    return development_release(cache_folder() / DEVELOPMENT, also) if log is None else _published(log, also)


def running_release(log: Path | None, also: Sequence[str] = ()) -> Release:
    """The same, for evidence: a release is shown only by a process that runs no other code than its."""
    release, code = find_release(log, also), interpreter.running()
    if log is not None and (code is None or code.measurement != release.measurement):
        raise SetupError(
            "This process was not started from the release's files alone.",
            hint="Start it by `cloister serve --release` or `cloister vault serve --release`.",
        )
    interpreter.check_loaded()
    return release


def _published(folder: Path, also: Sequence[str]) -> Release:
    try:
        log = Log.open(folder)
        names = sorted(path.name for path in (folder / "manifest").iterdir())
        manifests = [published_manifest(log, bytes.fromhex(name)) for name in names]
        running = measure_running(also)
        found = {
            place[0]: manifest
            for manifest in manifests
            if not differences(read_manifest(manifest), running)
            and (place := published_at(log, measurement(manifest))) is not None
        }
    except (OSError, ValueError) as wrong:
        raise SetupError(f"The log in {folder} cannot be read ({type(wrong).__name__}).") from None
    except CloisterError as wrong:
        raise SetupError(f"The log in {folder} is of no use: {wrong.message}", hint=wrong.hint) from None
    if not found:
        more = f" with {' and '.join(also)}" if also else ""
        raise SetupError(
            f"No release in {folder} is what runs here{more}, or it was revoked.",
            hint="Publish this one (`cloister release build`, `cloister log append`), or install one that is there."
            + (" `--mpc off` serves without the level mpc and its code." if also else ""),
        )
    return Release(found[max(found)], folder, str(log.key))
