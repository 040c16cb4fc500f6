"""A node shows its GPUs: asked through a process of their own, bound to the node, verified as a client does it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cloister.attest import node as node_module
from cloister.attest.attester import Attestation, Tee
from cloister.attest.evidence import HOST_DOMAIN, GpuEvidence, NodeEvidence, Statement, gpu_nonce, read_statement
from cloister.attest.node import verify_node
from cloister.attest.nvidia.reports import GpuPolicy, verify_gpu_reports
from cloister.attest.policy import Policy
from cloister.attest.snp import SnpPolicy, verify_snp
from cloister.checks import Verdict
from cloister.config import ControllerSettings, Settings
from cloister.controller import gpu_evidence
from cloister.controller.channel_keys import ChannelKeys
from cloister.controller.evidence import EvidenceMaker
from cloister.controller.gpu_evidence import MAX_WAITING, GpuEvidenceKeeper
from cloister.controller.process import Controller
from cloister.errors import GpuNotConfidential, NoGpu, QueueFull, ServiceUnavailable, SetupError
from cloister.messages.controller_gateway import AskEvidence
from cloister.messages.generation import Failed
from cloister.models.source import ModelFolder
from cloister.transparency.proof import Release, development_release
from tests.attest.fake_driver import CRASH, Driver, built_library, running_driver
from tests.attest.snp_maker import AT, Chip
from tests.attest.statements import made_statement
from tests.controller.test_sealed_requests import Wire
from tests.fuzz.nvidia_made import MadeGpu

NONCE, OTHER_NONCE = b"n" * 32, b"o" * 32
POLICY = Policy(
    require_gpu=True,
    snp=SnpPolicy(measurements=("aa" * 48,)),
    gpu=GpuPolicy(allow_unmeasured=True),
    accept_missing_layers=("no_devices",),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_library(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A machine with two GPUs."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    with running_driver(tmp_path) as driver:
        driver.gpus.append(MadeGpu(root=driver.gpus[0].root))
        yield driver


@pytest.fixture
async def keeper(driver: Driver) -> AsyncIterator[GpuEvidenceKeeper]:
    keeper = GpuEvidenceKeeper("nvml")
    await keeper.start()
    yield keeper
    await keeper.close()


class Hardware:
    tee: Tee = "sev-snp"

    def __init__(self) -> None:
        self.chip = Chip()

    def attest(self, report_data: bytes) -> Attestation:
        return Attestation("sev-snp", self.chip.report(report_data=report_data), tuple(self.chip.pieces))


class Office:
    """A node in a TEE, and its client."""

    def __init__(self, release: Release, gpus: Any) -> None:
        self.keys = ChannelKeys()
        self.hardware = Hardware()
        self.maker = EvidenceMaker(self.hardware, release, lambda: self.keys.shown, self.statement, gpus=gpus)

    async def statement(self) -> Statement:
        return made_statement(missing_layers=("no_devices",))

    async def evidence(self, nonce: bytes = NONCE) -> NodeEvidence:
        try:
            return await self.maker.evidence(nonce)
        finally:
            await self.maker.close()

    def verify(self, evidence: NodeEvidence, gpus: list[MadeGpu], nonce: bytes = NONCE) -> Verdict:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node_module, "verify_snp", partial(verify_snp, roots=self.hardware.chip.roots))
            patch.setattr(node_module, "verify_gpu_reports", partial(verify_gpu_reports, roots=gpus[0].roots))
            return verify_node(evidence, nonce, at=AT, policy=POLICY)


class Shows:
    """Shows what it is told to, whatever was asked."""

    def __init__(self, shown: bytes | None, count: int = 2) -> None:
        self.shown = shown
        self.count = count

    async def show(self, nonce: bytes) -> GpuEvidence | None:
        return None if self.shown is None else GpuEvidence("report", self.shown)

    async def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return development_release(tmp_path_factory.mktemp("development"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, keeper: GpuEvidenceKeeper) -> None:
    """The code of this node counts as compared with its release. (The reporter is running by now.)"""
    monkeypatch.setattr("cloister.process.release_code.running", object())


def broken(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.broken}


@pytest.mark.usefixtures("measured")
async def test_a_node_with_gpus_satisfies_a_policy_that_requires_them(
    release: Release, keeper: GpuEvidenceKeeper, driver: Driver
) -> None:
    office = Office(release, keeper)
    evidence = await office.evidence()
    verdict = office.verify(evidence, driver.gpus)
    assert verdict.passed, verdict.broken
    assert {"gpu evidence", "gpus shown", "gpu 0: nonce", "gpu 1: signature"} <= {one.name for one in verdict.checks}
    assert read_statement(evidence.statement).gpus == keeper.count == 2
    assert broken(office.verify(evidence, driver.gpus, OTHER_NONCE)) == {"report data", "gpu 0: nonce", "gpu 1: nonce"}
    assert {nonce for what, _, nonce in driver.asked if what == "R"} == {evidence.gpu_nonce(NONCE)} != {NONCE}


def reports(gpus: list[MadeGpu], nonce: bytes) -> bytes:
    return json.dumps([gpu.entry(nonce) for gpu in gpus]).encode()


@pytest.mark.usefixtures("measured")
class TestBreaks:
    async def test_a_report_over_an_older_nonce(self, release: Release, driver: Driver) -> None:
        office = Office(release, Shows(None, 0))
        old = gpu_nonce(OTHER_NONCE, office.keys.public, release.measurement)
        office = Office(release, Shows(reports(driver.gpus, old)))
        assert broken(office.verify(await office.evidence(), driver.gpus)) == {"gpu 0: nonce", "gpu 1: nonce"}

    async def test_a_report_over_the_clients_nonce_alone(self, release: Release, driver: Driver) -> None:
        """Anybody who forwards the client's nonce to another machine's GPU has that."""
        office = Office(release, Shows(reports(driver.gpus, NONCE)))
        assert broken(office.verify(await office.evidence(), driver.gpus)) == {"gpu 0: nonce", "gpu 1: nonce"}

    async def test_a_report_of_another_nodes_gpus_for_the_same_client(
        self, release: Release, keeper: GpuEvidenceKeeper, driver: Driver
    ) -> None:
        other = await Office(release, keeper).evidence()
        assert other.gpu is not None
        office = Office(release, Shows(other.gpu.data))
        mine = await office.evidence()
        assert broken(office.verify(mine, driver.gpus)) == {"gpu 0: nonce", "gpu 1: nonce"}
        spliced = replace(mine, gpu=other.gpu, channel_key=other.channel_key)
        assert broken(office.verify(spliced, driver.gpus)) == {"report data"}

    async def test_one_of_two_gpus(self, release: Release, driver: Driver) -> None:
        office = Office(release, Answering(driver.gpus[:1], count=2))
        verdict = office.verify(await office.evidence(), driver.gpus)
        assert broken(verdict) == {"gpus shown"} and "1 of 2 GPUs" in verdict.broken[0].reason

    async def test_one_gpu_in_the_place_of_two(self, release: Release, driver: Driver) -> None:
        office = Office(release, Answering([driver.gpus[0]] * 2, count=2))
        assert broken(office.verify(await office.evidence(), driver.gpus)) == {"gpus distinct"}

    async def test_swapped_certificates(self, release: Release, keeper: GpuEvidenceKeeper, driver: Driver) -> None:
        office = Office(release, keeper)
        evidence = await office.evidence()
        assert evidence.gpu is not None
        one, other = json.loads(evidence.gpu.data)
        one["certificate"], other["certificate"] = other["certificate"], one["certificate"]
        swapped = replace(evidence, gpu=replace(evidence.gpu, data=json.dumps([one, other]).encode()))
        assert broken(office.verify(swapped, driver.gpus)) == {"report data", "gpu 0: signature", "gpu 1: signature"}

    async def test_certificates_of_another_maker(self, release: Release, keeper: GpuEvidenceKeeper) -> None:
        office = Office(release, keeper)
        verdict = office.verify(await office.evidence(), [MadeGpu()])
        assert "gpu 0: certificate chain" in broken(verdict)

    async def test_no_gpu_evidence(self, release: Release, keeper: GpuEvidenceKeeper, driver: Driver) -> None:
        office = Office(release, keeper)
        taken_out = replace(await office.evidence(), gpu=None)
        assert broken(office.verify(taken_out, driver.gpus)) == {"report data", "gpu evidence"}
        office = Office(release, Shows(None, 0))
        assert broken(office.verify(await office.evidence(), driver.gpus)) == {"gpu evidence"}

    async def test_gpus_that_say_nothing_leave_no_evidence(self, release: Release) -> None:
        with pytest.raises(SetupError, match="show nothing"):
            await Office(release, Shows(None, 2)).evidence()


class Answering(Shows):
    """GPUs that answer what they are asked."""

    def __init__(self, gpus: list[MadeGpu], count: int) -> None:
        super().__init__(None, count)
        self._gpus = gpus

    async def show(self, nonce: bytes) -> GpuEvidence | None:
        return GpuEvidence("report", reports(self._gpus, nonce))


def test_a_vault_hosts_gpus_sign_something_else() -> None:
    key, release = b"k" * 32, b"m" * 32
    nonces = [gpu_nonce(NONCE, key, release, domain) for domain in (b"cloister evidence v3\0", HOST_DOMAIN)]
    others = [gpu_nonce(OTHER_NONCE, key, release), gpu_nonce(NONCE, b"x" * 32, release), gpu_nonce(NONCE, key, key)]
    assert len({*nonces, *others, NONCE}) == 6 and nonces[0] == gpu_nonce(NONCE, key, release)


async def test_a_node_that_is_to_show_its_gpu_and_cannot_does_not_start(driver: Driver) -> None:
    driver.state = (0, 0, 0)
    with pytest.raises(GpuNotConfidential, match="not in confidential mode"):
        await GpuEvidenceKeeper("nvml").start()
    driver.gpus = []
    with pytest.raises(NoGpu):
        await GpuEvidenceKeeper("nvml").start()
    driver.codes = {"I": 4}
    with pytest.raises(SetupError, match="code 4"):
        await GpuEvidenceKeeper("nvml").start()


async def test_the_controller_asks_the_gpus_before_it_reads_any_weights(driver: Driver, tmp_path: Path) -> None:
    driver.state = (0, 0, 0)
    controls = ControllerSettings(attester="software", gpu_evidence="nvml")
    controller = Controller(ModelFolder("m", tmp_path, {}), Settings(controller=controls))
    with pytest.raises(GpuNotConfidential):
        await controller.start()
    assert controller.compute._weights is None
    await controller.close()


async def test_without_a_choice_gpus_are_shown_where_they_are_confidential(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_evidence, "DEVICE", str(tmp_path))
    confidential = GpuEvidenceKeeper("auto")
    await confidential.start()
    assert confidential.count == 2 and await confidential.show(NONCE) is not None
    await confidential.close()
    driver.state = (0, 0, 0)
    plain = GpuEvidenceKeeper("auto")
    await plain.start()
    assert plain.count == 0 and await plain.show(NONCE) is None
    driver.codes = {"S": 15}
    with pytest.raises(SetupError, match="code 15"):
        await GpuEvidenceKeeper("auto").start()
    monkeypatch.setattr(gpu_evidence, "DEVICE", str(tmp_path / "absent"))
    asked = len(driver.asked)
    for choice in ("auto", "none"):
        silent = GpuEvidenceKeeper(choice)  # type: ignore[arg-type]
        await silent.start()
        assert silent.count == 0
    assert len(driver.asked) == asked, "where there is no GPU nobody is started to ask"


async def test_gpus_that_stop_being_confidential_leave_no_evidence(
    release: Release, keeper: GpuEvidenceKeeper, driver: Driver
) -> None:
    driver.state = (0, 0, 0)
    office, wire = Office(release, keeper), Wire()
    office.maker.answer(wire, AskEvidence(7, NONCE, 0))
    assert (await wire.next(Failed)).code == "gpu_not_confidential"
    driver.state = (2, 1, 0)
    driver.gpus.pop()
    with pytest.raises(SetupError, match="had 2 GPUs"):
        await keeper.show(NONCE)
    await office.maker.close()


async def test_a_driver_that_hangs_or_crashes_costs_an_answer_and_no_more(driver: Driver) -> None:
    keeper = GpuEvidenceKeeper("nvml", answer_s=1.0)
    await keeper.start()
    driver.may_answer.clear()
    with pytest.raises(ServiceUnavailable, match="in time"):
        await keeper.show(NONCE)
    driver.may_answer.set()
    assert await keeper.show(NONCE) is not None
    driver.codes = {"R": CRASH}
    with pytest.raises(ServiceUnavailable, match="ended"):
        await keeper.show(NONCE)
    driver.codes = {}
    assert await keeper.show(NONCE) is not None
    await keeper.close()


async def test_a_reporter_that_finds_other_gpus_than_at_the_start_is_not_asked(driver: Driver) -> None:
    keeper = GpuEvidenceKeeper("nvml")
    await keeper.start()
    await keeper.close()
    driver.gpus.append(MadeGpu())
    with pytest.raises(SetupError, match="showed 2 GPUs"):
        await keeper.show(NONCE)


async def test_few_may_wait_for_the_gpus(keeper: GpuEvidenceKeeper, driver: Driver) -> None:
    driver.may_answer.clear()
    waiting = [asyncio.create_task(keeper.show(bytes([number]) * 32)) for number in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await keeper.show(NONCE)
    driver.may_answer.set()
    answers = await asyncio.gather(*waiting)
    firsts = [msgspec.json.decode(one.data)[0]["evidence"] for one in answers if one]
    assert len(set(firsts)) == MAX_WAITING, "each has the answer to its own nonce"
