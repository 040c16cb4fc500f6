"""Who makes reports for a machine: its firmware, through the kernel's configfs, or software alone. Azure's confidential
VMs have a vTPM in the firmware's place (`cloister.attest.azure.attester`).

configfs-tsm (Documentation/ABI/testing/configfs-tsm) is the same for SEV-SNP and TDX guests: make a folder, write 64
bytes into it, read the report out of it. Software is for development: whoever runs the machine can sign anything this
way, so a client refuses it unless told otherwise. The firmware's reports are not verified here.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Meta, Struct

from cloister.attest.chain import is_authority
from cloister.attest.snp.certificate import read_bundle
from cloister.checks import Examination, Verdict, decode_evidence
from cloister.errors import EvidenceInvalid, SetupError

Tee = Literal["none", "sev-snp", "tdx", "azure"]
"""`azure`: SEV-SNP or TDX under Microsoft's paravisor, which keeps a vTPM for the guest."""
REPORT_DATA_BYTES = 64


@dataclass(frozen=True)
class Attestation:
    """A report over the asker's 64 bytes, with what checks it where the machine has that."""

    tee: Tee
    report: bytes
    certificates: tuple[bytes, ...] = ()
    """DER, the report's signer first, revocation lists last."""
    collateral: bytes = b""
    """TDX: the JSON dcap-qvl takes."""


class Attester(Protocol):
    """Makes reports."""

    @property
    def tee(self) -> Tee: ...

    def attest(self, report_data: bytes) -> Attestation:
        """A report over exactly these 64 bytes, or a SetupError that says why there is none."""


DOMAIN = b"cloister software report v1\0"
MAX_REPORT_BYTES = 4096
MAX_AGE = timedelta(days=1)
CLOCKS_MAY_DIFFER = timedelta(minutes=5)


class SoftwareReport(Struct, frozen=True, forbid_unknown_fields=True):
    """JSON on the wire. No hardware stands behind it."""

    tee: Literal["none"]
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    report_data: Annotated[bytes, Meta(min_length=REPORT_DATA_BYTES, max_length=REPORT_DATA_BYTES)]
    made: Annotated[int, Meta(ge=0, lt=1 << 33)]
    """Unix seconds."""
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class SoftwareAttester:
    """Signs with a key made at start."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._clock = clock

    @property
    def tee(self) -> Tee:
        return "none"

    def attest(self, report_data: bytes) -> Attestation:
        if len(report_data) != REPORT_DATA_BYTES:
            raise SetupError(f"A report covers {REPORT_DATA_BYTES} bytes, not {len(report_data)}.")
        made = int(self._clock())
        report = SoftwareReport(
            tee="none",
            key=self._key.public_key().public_bytes_raw(),
            report_data=report_data,
            made=made,
            signature=self._key.sign(_signed(report_data, made)),
        )
        return Attestation("none", msgspec.json.encode(report))


def verify_software(report: bytes, *, at: datetime, allowed: bool, report_data: bytes | None) -> Verdict:
    """Check all that can be checked; `software tee` fails unless `allowed`."""
    read = decode_evidence(report, SoftwareReport, "A software report", limit=MAX_REPORT_BYTES)
    found = Examination()
    found.claim("tee", "none")
    found.claim("key", read.key.hex())
    found.claim("report_data", read.report_data.hex())
    found.check(
        "software tee",
        allowed,
        "no hardware stands behind this node: whoever runs it can read everything",
        "allowed by the reader; protects against nobody who runs the machine",
    )
    found.check("report signature", _signature_holds(read), "not made by the key in the report")
    made = datetime.fromtimestamp(read.made, UTC)
    found.check(
        "report age",
        at - MAX_AGE <= made <= at + CLOCKS_MAY_DIFFER,
        f"made at {made:%Y-%m-%d %H:%M:%S} UTC, which is too long ago or to come",
    )
    if report_data is None:
        found.skipped("report data", "no nonce was given", required=False)
    else:
        same = hmac.compare_digest(read.report_data, report_data)
        found.check("report data", same, "the report was made for another nonce or key")
    return found.verdict()


def _signed(report_data: bytes, made: int) -> bytes:
    return DOMAIN + report_data + made.to_bytes(8, "big")


def _signature_holds(report: SoftwareReport) -> bool:
    signed = _signed(report.report_data, report.made)
    try:
        Ed25519PublicKey.from_public_bytes(report.key).verify(report.signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


TSM_ROOT = Path("/sys/kernel/config/tsm/report")
MAX_BLOB_BYTES = 1 << 18
CHASSIS = Path("/sys/class/dmi/id/chassis_asset_tag")
AZURE = "7783-7084-3265-9085-8269-3286-77"
"""What the firmware of every Azure VM says of its chassis."""
_PROVIDERS: dict[str, Tee] = {"sev_guest": "sev-snp", "tdx_guest": "tdx"}
_TRIES = 3
_Answer = TypeVar("_Answer")


class NoFirmware(SetupError):
    """The kernel has the interface, but nothing behind it."""


class ReportFolder:
    """One request to the firmware: a folder of the kernel's, with files for question and answer."""

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
        """The kernel removes the files with the folder."""
        self.path.rmdir()


class TsmAttester:
    def __init__(self, root: Path = TSM_ROOT, *, folder: Callable[[Path], ReportFolder] = ReportFolder) -> None:
        self._root = root
        self._folder = folder
        self._tee = self._ask(lambda request: _provider(request.read("provider")))

    @property
    def tee(self) -> Tee:
        return self._tee

    def attest(self, report_data: bytes) -> Attestation:
        if len(report_data) != REPORT_DATA_BYTES:
            raise SetupError(f"A report covers {REPORT_DATA_BYTES} bytes, not {len(report_data)}.")
        for _ in range(_TRIES):
            attestation = self._ask(lambda request: self._report(request, report_data))
            if attestation:
                return attestation
        raise SetupError("Someone else writes to our report requests.", hint=f"Who else uses {self._root}?")

    def _report(self, request: ReportFolder, report_data: bytes) -> Attestation | None:
        """None if the question changed between our write and our read."""
        before = int(request.read("generation"))
        request.write("inblob", report_data)
        report = request.read("outblob")
        table = request.read("auxblob") if self._tee == "sev-snp" else b""  # only SNP's hosts hand out certificates
        if _provider(request.read("provider")) != self._tee or int(request.read("generation")) != before + 1:
            return None
        return Attestation(self._tee, report, certificates_of(table))

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


def find_attester(kind: Literal["auto", "software", "tsm", "azure"], root: Path = TSM_ROOT) -> Attester:
    """The firmware of this machine, or its vTPM; software where there is neither or where it was asked for."""
    if kind == "software":
        return SoftwareAttester()
    if kind != "azure":
        try:
            return TsmAttester(root)
        except NoFirmware:
            if kind == "tsm":
                raise
    if kind == "auto" and not _runs_on_azure(CHASSIS):
        return SoftwareAttester()
    from cloister.attest.azure.attester import AzureAttester  # which builds on this module

    try:
        return AzureAttester()
    except NoFirmware:
        if kind == "azure":
            raise
        return SoftwareAttester()


def _runs_on_azure(chassis: Path) -> bool:
    """Whether this machine's firmware says so. It only decides who is asked for evidence."""
    try:
        return chassis.read_text().strip() == AZURE
    except (OSError, ValueError):
        return False


def _provider(name: bytes) -> Tee:
    tee = _PROVIDERS.get(name.decode("ascii", "replace").strip())
    if tee is None:
        raise SetupError(f"Reports of this machine's kind are not known here; {', '.join(_PROVIDERS)} are.")
    return tee


def certificates_of(*pieces: bytes) -> tuple[bytes, ...]:
    """The report's signer first: it is the only one that may not sign certificates. Revocation lists come last."""
    try:
        bundle = read_bundle(pieces)
    except EvidenceInvalid as wrong:
        raise SetupError(f"The host's certificates are of no use: {wrong.message}") from None
    certificates = [one.public_bytes(Encoding.DER) for one in sorted(bundle.certificates, key=is_authority)]
    return (*certificates, *(one.public_bytes(Encoding.DER) for one in bundle.revocation_lists))


def _no_report(root: Path, wrong: Exception) -> SetupError:
    """ENXIO: no firmware registered with the kernel. Any other error: it did not answer."""
    number = wrong.errno if isinstance(wrong, OSError) else None
    if not root.is_dir() or number == errno.ENXIO:
        return NoFirmware(
            "This machine's kernel offers no attestation reports.",
            hint="Run in an SEV-SNP or TDX guest of Linux 6.7 or newer, with configfs and its guest driver.",
        )
    if number in (errno.EACCES, errno.EPERM):
        return SetupError(f"No right to ask for reports in {root}.", hint="Run as root, or hand the folder over.")
    return SetupError(f"The firmware gave no report ({type(wrong).__name__}, {errno.errorcode.get(number or 0, '?')}).")
