"""The kernel's configfs interface, played by a folder that answers as the kernel does."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from cloister.attest.attester import SoftwareAttester
from cloister.attest.chain import subject
from cloister.attest.machine import ReportFolder, TsmAttester, find_attester
from cloister.attest.snp import SnpPolicy, verify_snp
from cloister.attest.snp.certificate import read_bundle
from cloister.errors import SetupError
from tests.attest import snp_maker as maker
from tests.attest.snp_maker import AT, Chip, table

ASKED = bytes(range(64))


class Kernel:
    """What is behind the folder: makes files appear with it, and answers a written question."""

    def __init__(self, root: Path, *, chip: Chip | None = None, provider: bytes = b"sev_guest\n") -> None:
        self.root = root
        self.chip = chip or Chip()
        self.provider = provider
        self.aux = table({maker.ARK: self.chip.ark, maker.VCEK: self.chip.leaf(), maker.ASK: self.chip.ask})
        self.others_write = 0
        self.made: list[Path] = []
        self.refuses: int | None = None
        root.mkdir()

    def attester(self) -> TsmAttester:
        return TsmAttester(self.root, folder=lambda root: Request(root, self))


class Request(ReportFolder):
    """A ReportFolder whose files are plain ones, filled in by our kernel."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        super().__init__(root)
        self._kernel = kernel

    def make(self) -> None:
        if self._kernel.refuses:
            raise OSError(self._kernel.refuses, "refused")
        super().make()
        self._kernel.made.append(self.path)
        (self.path / "provider").write_bytes(self._kernel.provider)
        (self.path / "generation").write_bytes(b"0\n")
        (self.path / "inblob").touch()

    def write(self, name: str, data: bytes) -> None:
        super().write(name, data)
        report = self._kernel.chip.report(report_data=data) if b"sev" in self._kernel.provider else b"quote " + data
        (self.path / "outblob").write_bytes(report)
        if b"sev" in self._kernel.provider:
            (self.path / "auxblob").write_bytes(self._kernel.aux)
        (self.path / "generation").write_bytes(b"%d\n" % (1 + min(self._kernel.others_write, 1)))
        self._kernel.others_write = max(0, self._kernel.others_write - 1)

    def remove(self) -> None:
        shutil.rmtree(self.path)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "report")


def test_a_report_comes_with_the_hosts_certificates_and_verifies(kernel: Kernel) -> None:
    attester = kernel.attester()
    assert attester.tee == "sev-snp"
    made = attester.attest(ASKED)
    assert made.tee == "sev-snp" and len(made.certificates) == 3
    verdict = verify_snp(
        made.report,
        made.certificates,
        at=AT,
        policy=SnpPolicy(measurements=("aa" * 48,), allow_missing_revocation_list=True),
        report_data=ASKED,
        roots=kernel.chip.roots,
    )
    assert verdict.passed, verdict.broken


def test_a_revocation_list_in_the_hosts_table_is_passed_on(kernel: Kernel) -> None:
    chip = kernel.chip
    kernel.aux = table(
        {maker.CRL: chip.revocation_list(), maker.ARK: chip.ark, maker.VCEK: chip.leaf(), maker.ASK: chip.ask}
    )
    made = kernel.attester().attest(ASKED)
    policy = SnpPolicy(measurements=("aa" * 48,))
    assert verify_snp(made.report, made.certificates, at=AT, policy=policy, report_data=ASKED, roots=chip.roots).passed


def test_the_signer_comes_first(kernel: Kernel) -> None:
    names = [subject(one) for one in read_bundle(kernel.attester().attest(ASKED).certificates).certificates]
    assert names[0] == "SEV-VCEK" and set(names[1:]) == {"SEV-Milan", "ARK-Milan"}


def test_each_request_has_a_folder_of_its_own_and_leaves_none(kernel: Kernel) -> None:
    attester = kernel.attester()
    attester.attest(ASKED)
    attester.attest(ASKED)
    assert len(set(kernel.made)) == 3 and list(kernel.root.iterdir()) == []


def test_a_host_without_certificates_is_no_obstacle(kernel: Kernel) -> None:
    for aux in (b"", bytes(24), bytes(4096)):
        kernel.aux = aux
        assert kernel.attester().attest(ASKED).certificates == ()


def test_a_host_with_a_broken_table_is_named(kernel: Kernel) -> None:
    kernel.aux = b"\x07" * 100
    with pytest.raises(SetupError, match="certificate table"):
        kernel.attester().attest(ASKED)
    assert list(kernel.root.iterdir()) == []


def test_tdx_speaks_through_the_same_door(tmp_path: Path) -> None:
    attester = Kernel(tmp_path / "report", provider=b"tdx_guest\n").attester()
    made = attester.attest(ASKED)
    assert attester.tee == made.tee == "tdx" and made.report == b"quote " + ASKED and made.certificates == ()


def test_a_question_changed_by_another_is_asked_again(kernel: Kernel) -> None:
    attester = kernel.attester()
    kernel.others_write = 2
    assert attester.attest(ASKED).report[0x50:0x90] == ASKED
    assert len(kernel.made) == 4
    kernel.others_write = 9
    with pytest.raises(SetupError, match="Another process"):
        attester.attest(ASKED)
    assert list(kernel.root.iterdir()) == []


def test_an_unknown_provider_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="sev_guest, tdx_guest"):
        Kernel(tmp_path / "report", provider=b"arm_cca_guest\n").attester()


def test_a_blob_without_end_is_refused(kernel: Kernel) -> None:
    kernel.aux = bytes((1 << 18) + 1)
    with pytest.raises(SetupError, match="EFBIG"):
        kernel.attester().attest(ASKED)


def test_a_report_covers_64_bytes(kernel: Kernel) -> None:
    with pytest.raises(SetupError, match="64 bytes"):
        kernel.attester().attest(ASKED[:32])


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EACCES, "No right"), (errno.EBUSY, "EBUSY"), (errno.ENXIO, "offers no")]
)
def test_the_kernels_refusals_are_told_apart(kernel: Kernel, number: int, words: str) -> None:
    kernel.refuses = number
    with pytest.raises(SetupError, match=words):
        kernel.attester()


def test_where_there_is_no_firmware_software_speaks(tmp_path: Path) -> None:
    assert isinstance(find_attester("auto", tmp_path / "absent"), SoftwareAttester)
    assert isinstance(find_attester("software"), SoftwareAttester)
    with pytest.raises(SetupError, match="offers no attestation reports"):
        find_attester("tsm", tmp_path / "absent")


def test_firmware_that_does_not_answer_is_not_replaced_by_software(tmp_path: Path) -> None:
    """The folder is there, so this machine has firmware to ask: falling back in silence would lower the guard."""
    root = tmp_path / "report"
    root.mkdir()  # plain folder: requests can be made, but no file appears in them
    with pytest.raises(SetupError):
        find_attester("auto", root)
