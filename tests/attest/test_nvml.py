"""The binding to NVIDIA's library, by a library with the same calls; and what a machine's GPUs are shown by."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.attest.nvidia import nvml as nvml_module
from cloister.attest.nvidia.nvml import Nvml
from cloister.attest.nvidia.reports import GpuPolicy, verify_gpu_reports
from cloister.attest.nvidia.spdm import read_bundle
from cloister.controller.gpu_reporter import MAX_GPUS, GpuReporter
from cloister.errors import GpuNotConfidential, NoGpu, SetupError
from tests.attest.fake_driver import NOT_SUPPORTED, Driver, built_library, running_driver
from tests.fuzz.nvidia_made import NONCE, NOW, MadeGpu


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(built_library(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with running_driver(tmp_path) as driver:
        yield driver


def test_the_structures_are_as_large_as_nvml_h_has_them() -> None:
    assert ctypes.sizeof(nvml_module._SystemState) == 12
    assert ctypes.sizeof(nvml_module._Certificate) == 8 + 0x1000 + 0x1400
    assert ctypes.sizeof(nvml_module._AttestationReport) == 12 + 32 + 0x2000 + 0x1000


def test_reports_and_chains_come_through_the_library(library: str, driver: Driver) -> None:
    driver.gpus = [MadeGpu(), MadeGpu("GB100")]
    nvml = Nvml(library)
    nvml.check_confidential()
    assert nvml.count() == 2
    for index, gpu in enumerate(driver.gpus):
        assert nvml.chain(index) == gpu.chain + b"\0"
        report = nvml.report(index, NONCE)
        verdict = verify_gpu_reports(
            report, NONCE, at=NOW, policy=GpuPolicy(allow_unmeasured=True), chain=gpu.chain, roots=gpu.roots
        )
        assert verdict.passed, verdict.broken
    assert [(what, index, nonce) for what, index, nonce in driver.asked if what == "R"] == [
        ("R", 0, NONCE),
        ("R", 1, NONCE),
    ]


@pytest.mark.parametrize(
    ("state", "words"),
    [((0, 0, 0), "not in confidential mode"), ((2, 1, 1), "for developers"), ((1, 1, 0), "environment for production")],
)
def test_a_gpu_that_does_not_protect_is_told_as_such(
    library: str, driver: Driver, state: tuple[int, int, int], words: str
) -> None:
    driver.state = state
    with pytest.raises(GpuNotConfidential, match=words):
        Nvml(library).check_confidential()
    with pytest.raises(GpuNotConfidential, match=words):
        GpuReporter(Nvml(library))


def test_errors_are_typed(library: str, driver: Driver, tmp_path: Path) -> None:
    with pytest.raises(NoGpu, match="has no libnvidia-ml"):
        Nvml(str(tmp_path / "absent.so"))
    driver.codes = {"I": 9}
    with pytest.raises(NoGpu, match="not loaded"):
        Nvml(library)
    driver.codes = {"S": NOT_SUPPORTED, "R": 4, "C": 15}
    nvml = Nvml(library)
    with pytest.raises(GpuNotConfidential, match="Not Supported"):
        nvml.check_confidential()
    with pytest.raises(SetupError, match="code 4") as refused:
        nvml.report(0, NONCE)
    assert "/dev/nvidia" in (refused.value.hint or "")
    with pytest.raises(SetupError, match="code 15"):
        nvml.chain(0)
    with pytest.raises(SetupError, match="32 bytes"):
        nvml.report(0, NONCE[1:])


def test_a_driver_without_the_functions_has_no_confidential_mode(driver: Driver, tmp_path: Path) -> None:
    nvml = Nvml.__new__(Nvml)
    nvml._library = ctypes.CDLL(None)
    with pytest.raises(GpuNotConfidential, match="no such function"):
        nvml.check_confidential()


@pytest.mark.parametrize("size", [0, 0x2001, 0xFFFFFFFF])
def test_a_size_that_no_answer_has_is_refused(library: str, driver: Driver, size: int) -> None:
    driver.sizes = {"R": size, "C": size}
    nvml = Nvml(library)
    with pytest.raises(SetupError, match="there is room for"):
        nvml.report(0, NONCE)
    with pytest.raises(SetupError, match="there is room for"):
        nvml.chain(0)


def test_every_gpu_is_shown_with_its_certificates(library: str, driver: Driver) -> None:
    shared = MadeGpu()
    driver.gpus = [shared, MadeGpu(root=shared.root)]
    reporter = GpuReporter(Nvml(library))
    shown = reporter.show(NONCE)
    assert reporter.count == 2 and len(read_bundle(shown, None)) == 2
    policy = GpuPolicy(allow_unmeasured=True, min_gpus=2)
    assert verify_gpu_reports(shown, NONCE, at=NOW, policy=policy, roots=shared.roots).passed
    assert {*json.loads(shown)[0]} == {"evidence", "certificate"}


def test_what_is_no_answer_is_not_shown(library: str, driver: Driver) -> None:
    reporter = GpuReporter(Nvml(library))
    recorded = driver.gpus[0].report(bytes(32))
    driver.report = lambda index, nonce: recorded
    with pytest.raises(SetupError, match="another nonce"):
        reporter.show(NONCE)
    driver.report = lambda index, nonce: b"nonsense"
    with pytest.raises(SetupError, match="cannot be read"):
        reporter.show(NONCE)
    driver.report = None
    driver.state = (0, 0, 0)
    with pytest.raises(GpuNotConfidential):
        reporter.show(NONCE)


def test_a_gpu_that_came_or_went_is_an_error(library: str, driver: Driver) -> None:
    driver.gpus = [MadeGpu(), MadeGpu()]
    reporter = GpuReporter(Nvml(library))
    driver.gpus.pop()
    with pytest.raises(SetupError, match="had 2 GPUs"):
        reporter.show(NONCE)
    driver.gpus = []
    with pytest.raises(NoGpu):
        GpuReporter(Nvml(library))
    driver.gpus = [MadeGpu()] * (MAX_GPUS + 1)
    with pytest.raises(SetupError, match="at most"):
        GpuReporter(Nvml(library))


def test_a_real_hoppers_report_is_shown_as_it_is(shared: Path) -> None:
    """Its nonce is the one it was recorded for."""
    recorded = read_bundle((shared / "vectors/nvidia/hopper_evidence.json").read_bytes(), None)[0]

    class Recorded:
        def count(self) -> int:
            return 1

        def check_confidential(self) -> None:
            pass

        def report(self, index: int, nonce: bytes) -> bytes:
            return recorded.report.signed + recorded.report.signature

        def chain(self, index: int) -> bytes:
            return recorded.chain

    shown = GpuReporter(Recorded()).show(recorded.report.nonce)
    (read,) = read_bundle(shown, None)
    assert read.report == recorded.report and read.chain == recorded.chain
    with pytest.raises(SetupError, match="another nonce"):
        GpuReporter(Recorded()).show(NONCE)
