"""A TDX quote taken apart, form alone (Intel TDX DCAP Quoting Library API, appendix A; little-endian); its policy."""

import struct
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from cloister.checks import Reader, check_digits
from cloister.errors import EvidenceInvalid

MAX_QUOTE_BYTES = 65536
HEADER_BYTES = 48
TEE_TDX = 0x81
KEY_ECDSA_P256 = 2
CERTIFICATION_QE_REPORT = 6
CERTIFICATION_PCK_CHAIN = 5
QE_REPORT_BYTES = 384
_TD_10 = struct.Struct("<16s48s48s8sQ8s48s48s48s48s48s48s48s48s64s")
_TD_15 = struct.Struct("<16s48s")
_BODIES: Final = {2: ("1.0", 584), 3: ("1.5", 648), 4: ("1.5 extended", 885)}  # by the body type of version 5


@dataclass(frozen=True)
class TdReport:
    """What the TDX module measured and was given, in the order of `_TD_10`, then of `_TD_15` (zeros in 1.0)."""

    version: str
    tee_tcb_svn: bytes
    mrseam: bytes
    mrsignerseam: bytes
    seam_attributes: bytes
    td_attributes: int
    xfam: bytes
    mrtd: bytes
    mrconfigid: bytes
    mrowner: bytes
    mrownerconfig: bytes
    rtmr0: bytes
    rtmr1: bytes
    rtmr2: bytes
    rtmr3: bytes
    report_data: bytes
    tee_tcb_svn2: bytes = bytes(16)
    mrservicetd: bytes = bytes(48)


@dataclass(frozen=True)
class QeReport:
    signed: bytes
    signature: bytes
    auth_data: bytes

    @property
    def report_data(self) -> bytes:
        return self.signed[320:384]


@dataclass(frozen=True)
class Quote:
    """A whole quote. `signed` is what `signature` is over; `pck_chain` is PEM, empty if the quote carries none."""

    version: int
    qe_vendor: bytes
    report: TdReport
    signed: bytes
    signature: bytes
    attestation_key: bytes
    qe: QeReport
    pck_chain: bytes


def read_quote(data: bytes) -> Quote:
    """The quote, or EvidenceInvalid. What follows the signature data is padding and is not read."""
    if len(data) > MAX_QUOTE_BYTES:
        raise EvidenceInvalid(f"A quote may have at most {MAX_QUOTE_BYTES} bytes.")
    quote = Reader(data, "The quote")
    version, key_type, tee, _, vendor, _ = struct.unpack("<HHI4s16s20s", quote.take(HEADER_BYTES))
    if version not in (4, 5):
        raise EvidenceInvalid(f"The quote has version {version}; TDX quotes have 4 or 5.")
    if tee != TEE_TDX:
        raise EvidenceInvalid(f"The quote is of TEE type {tee:#x}, not of TDX ({TEE_TDX:#x}).")
    if key_type != KEY_ECDSA_P256:
        raise EvidenceInvalid(f"The quote's attestation key has type {key_type}, not {KEY_ECDSA_P256} (ECDSA P-256).")
    body_type = 2 if version == 4 else quote.number(2)
    name, size = _BODIES.get(body_type, ("", 0))
    if not name or (version == 5 and quote.number(4) != size):
        raise EvidenceInvalid(f"The quote's body has type {body_type} or a size that is not of a TD report.")
    body = quote.take(size)
    newer = _TD_15.unpack_from(body, _TD_10.size) if name != "1.0" else ()
    report = TdReport(name, *_TD_10.unpack_from(body), *newer)
    signed = data[: quote.at]
    signature, key, qe, chain = _read_signature_data(quote.take(quote.number(4)))
    return Quote(version, vendor, report, signed, signature, key, qe, chain)


def _read_signature_data(data: bytes) -> tuple[bytes, bytes, QeReport, bytes]:
    outer = Reader(data, "The quote's signature data")
    signature, key, kind = outer.take(64), outer.take(64), outer.number(2)
    if kind != CERTIFICATION_QE_REPORT:
        raise EvidenceInvalid(f"The quote is certified by data of type {kind}, not by the QE's report.")
    inner = Reader(outer.take(outer.number(4)), "The quote's certification data")
    qe = QeReport(inner.take(QE_REPORT_BYTES), inner.take(64), inner.take(inner.number(2)))
    kind = inner.number(2)
    chain = inner.take(inner.number(4))
    if outer.left or inner.left:
        raise EvidenceInvalid("The quote's signature data has more bytes than expected.")
    return signature, key, qe, chain if kind == CERTIFICATION_PCK_CHAIN else b""


_Warned = Literal["SWHardeningNeeded", "ConfigurationNeeded", "ConfigurationAndSWHardeningNeeded"]
_Old = Literal["OutOfDate", "OutOfDateConfigurationNeeded", "TDRelaunchAdvised", "TDRelaunchAdvisedConfigurationNeeded"]
Status = Literal["UpToDate"] | _Warned | _Old
"""Intel's words for a platform's TCB. `Revoked` is not among them: no policy can accept it."""

REGISTERS = ("mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3", "mrseam", "mrconfigid", "mrowner", "mrownerconfig")
ANY = "any"


class Launch(Struct, frozen=True, forbid_unknown_fields=True):
    """Accepted as a whole. MRTD: firmware, RTMR0: its settings, RTMR1: loader and kernel, RTMR2: command and initrd."""

    mrtd: str
    rtmr0: str  # or ANY
    rtmr1: str
    rtmr2: str
    rtmr3: str | None = None
    mrseam: str | None = None
    mrconfigid: str | None = None
    mrowner: str | None = None
    mrownerconfig: str | None = None

    def __post_init__(self) -> None:
        check_digits(self, **dict.fromkeys(set(REGISTERS) - {"rtmr0"} if self.rtmr0 == ANY else REGISTERS, 96))

    def differences(self, report: TdReport) -> list[str]:
        named = {name: getattr(self, name) for name in REGISTERS if getattr(self, name) not in (None, ANY)}
        return [name for name, value in named.items() if getattr(report, name) != bytes.fromhex(value)]


class TdxPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """An absent list asks nothing, an empty one accepts nothing. Without `launches` nothing passes."""

    launches: tuple[Launch, ...] = ()
    td_attributes: tuple[str, ...] | None = None  # in hex, as `cloister attest check` shows it
    xfam: tuple[str, ...] | None = None
    fmspcs: tuple[str, ...] | None = None  # models of processor
    accepted_statuses: tuple[Status, ...] = ("UpToDate",)
    refused_advisories: tuple[str, ...] = ()  # Intel's advisories (`INTEL-SA-…`) that must not apply to the platform.
    accepted_advisories: tuple[str, ...] | None = None  # If given, no advisory may apply but these.
    min_tcb_evaluation: Annotated[int, Meta(ge=0)] = 0  # Intel's `tcbEvaluationDataNumber` of the collateral
    min_tee_tcb_svn: str = ""  # Hex of 16 bytes, each a minimum.
    require_sept_ve_disable: bool = False  # whatever `allow_sept_ve` says
    allow_sept_ve: bool = False  # relaxation: its host may take pages and make it fault

    def __post_init__(self) -> None:
        check_digits(self, td_attributes=16, xfam=16, fmspcs=12)
        if self.min_tee_tcb_svn:
            check_digits(self, min_tee_tcb_svn=32)

    def relaxations(self) -> tuple[str, ...]:
        statuses = [f"accepted_statuses {status}" for status in self.accepted_statuses if status != "UpToDate"]
        unset = any(each.rtmr0 == ANY for each in self.launches)
        exposed = self.allow_sept_ve and not self.require_sept_ve_disable
        return (*statuses, *(["launches rtmr0 any"] if unset else ()), *(["allow_sept_ve"] if exposed else ()))
