"""The attester of this machine: its firmware by the kernel's configfs-tsm, or software. Reports are not verified."""

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from cloister.attest.attester import (
    REPORT_DATA_BYTES,
    Attestation,
    Attester,
    NoFirmware,
    SoftwareAttester,
    Tee,
    certificates_of,
)
from cloister.errors import SetupError

TSM_ROOT = Path("/sys/kernel/config/tsm/report")
MAX_BLOB_BYTES = 1 << 18
_PROVIDERS: dict[str, Tee] = {"sev_guest": "sev-snp", "tdx_guest": "tdx"}
_TRIES = 3
_Answer = TypeVar("_Answer")


class ReportFolder:
    def __init__(self, root: Path) -> None:
        self.path = root / f"cloister-{os.getpid()}-{secrets.token_hex(4)}"

    def make(self) -> None:
        self.path.mkdir()

    def write(self, name: str, data: bytes) -> None:
        """In one write: the kernel takes it when the file is closed."""
        file = os.open(self.path / name, os.O_WRONLY)
        try:
            written = os.write(file, data)
        finally:
            os.close(file)
        if written != len(data):
            raise OSError(errno.EIO, "short write")

    def read(self, name: str) -> bytes:
        with (self.path / name).open("rb") as file:
            data = file.read(MAX_BLOB_BYTES + 1)
        if len(data) > MAX_BLOB_BYTES:
            raise OSError(errno.EFBIG, "blob too large")
        return data

    def remove(self) -> None:
        self.path.rmdir()


class TsmAttester:
    def __init__(self, root: Path = TSM_ROOT, *, folder: Callable[[Path], ReportFolder] = ReportFolder) -> None:
        self._root = root
        self._folder = folder
        self.tee = self._ask(lambda request: _provider(request.read("provider")))

    def attest(self, report_data: bytes) -> Attestation:
        if len(report_data) != REPORT_DATA_BYTES:
            raise SetupError(f"A report covers {REPORT_DATA_BYTES} bytes, not {len(report_data)}.")
        for _ in range(_TRIES):
            attestation = self._ask(lambda request: self._report(request, report_data))
            if attestation:
                return attestation
        raise SetupError("Another process writes to our report requests.", hint=f"Find it: it uses {self._root}.")

    def _report(self, request: ReportFolder, report_data: bytes) -> Attestation | None:
        """None if the question changed between our write and our read."""
        before = int(request.read("generation"))
        request.write("inblob", report_data)
        report = request.read("outblob")
        table = request.read("auxblob") if self.tee == "sev-snp" else b""  # only SNP's hosts hand out certificates
        if _provider(request.read("provider")) != self.tee or int(request.read("generation")) != before + 1:
            return None
        return Attestation(self.tee, report, certificates_of(table))

    def _ask(self, question: Callable[[ReportFolder], _Answer]) -> _Answer:
        request = self._folder(self._root)
        try:
            request.make()
            try:
                return question(request)
            finally:
                request.remove()
        except (OSError, ValueError) as wrong:
            raise _no_report(self._root, wrong) from None


def find_attester(kind: Literal["auto", "software", "tsm"], root: Path = TSM_ROOT) -> Attester:
    """The firmware of this machine; software where there is none or where it was asked for."""
    if kind == "tsm":
        return TsmAttester(root)
    if kind == "auto":
        with suppress(NoFirmware):
            return TsmAttester(root)
    return SoftwareAttester()


def _provider(name: bytes) -> Tee:
    tee = _PROVIDERS.get(name.decode("ascii", "replace").strip())
    if tee is None:
        raise SetupError(f"Reports of this machine's kind are not known here; {', '.join(_PROVIDERS)} are.")
    return tee


def _no_report(root: Path, wrong: Exception) -> SetupError:
    """ENXIO: no firmware registered with the kernel. Any other error: it did not answer."""
    number = wrong.errno if isinstance(wrong, OSError) else None
    if not root.is_dir() or number == errno.ENXIO:
        hint = "Run in an SEV-SNP or TDX guest of Linux 6.7 or newer, with configfs and its guest driver."
        return NoFirmware("This machine's kernel offers no attestation reports.", hint=hint)
    if number in (errno.EACCES, errno.EPERM):
        return SetupError(f"No right to ask for reports in {root}.", hint="Run as root, or hand the folder over.")
    return SetupError(f"The firmware gave no report ({type(wrong).__name__}, {errno.errorcode.get(number or 0, '?')}).")
