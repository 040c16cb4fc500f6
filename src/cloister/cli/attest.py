"""`cloister attest`: check anyone's attestation evidence, from files alone."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from pydantic import BaseModel

from cloister.checks import Verdict, decode_text
from cloister.cli.options import USAGE_EXIT, exit_by, print_error, settings_command, show_verdict
from cloister.config import option
from cloister.errors import CloisterError, EvidenceInvalid, SetupError
from cloister.files import read_bounded

if TYPE_CHECKING:
    from cloister.attest.policy import Policy

MAX_FILE_BYTES = 4 << 20


def read_file(path: Path) -> bytes:
    data = read_bounded(path, MAX_FILE_BYTES, hint="Is the name right?")
    if not data.strip():
        raise SetupError(f"{path} is empty.")
    return data


def unpack(data: bytes) -> bytes:
    """What is neither PEM nor text is binary already."""
    decoded = None if b"-----BEGIN " in data else decode_text(data)
    return data if decoded is None else decoded


def read_time(text: str | None) -> datetime:
    """The moment of --at: ISO 8601 (UTC unless it says otherwise), or Unix seconds; now, if there is none."""
    if text is None:
        return datetime.now(UTC)
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return datetime.fromtimestamp(float(text), UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise SetupError("--at takes a time.", hint="Like 2026-03-01T12:00:00Z, 2026-03-01, or Unix seconds.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_REPORT_DATA_BYTES = 64
_KINDS = {"snp": "snp", "tdx": "tdx", "nvidia": "nvidia", "sev-snp": "snp", "gpu": "nvidia"}

attest = typer.Typer(no_args_is_help=True)


@attest.callback()
def _group() -> None:
    """Attestation evidence of SEV-SNP, TDX and NVIDIA GPUs."""


_EVIDENCE_HELP = "Report or quote: binary, hex or base64. For nvidia also JSON of several reports."
_CERTS_HELP = (
    "snp: the VCEK or VLEK, ASK and ARK as PEM, DER or a host's table, in any order. nvidia: a report's chain as PEM."
)
_COLLATERAL_HELP = "tdx: Intel's, as JSON. snp: AMD's revocation list. nvidia: manifests (XML) and OCSP (DER)."
_NONCE_HELP = "What the evidence must answer: the report data, without zeros at its end."


class EvidenceFiles(BaseModel):
    kind: str = option(..., "Whose evidence it is.", metavar="snp|tdx|nvidia")
    evidence: Path = option(..., _EVIDENCE_HELP, metavar="FILE")
    certs: list[Path] | None = option(None, _CERTS_HELP, metavar="FILE…")
    more_certs: list[Path] | None = option(None, "More for --certs.", argument=True, metavar="[CERTS]...", hidden=True)
    collateral: list[Path] | None = option(None, _COLLATERAL_HELP, metavar="FILE")
    nonce: str | None = option(None, _NONCE_HELP, metavar="HEX")
    at: str | None = option(None, "ISO 8601 or Unix seconds.", metavar="TIME", show_default="now")
    policy: Path | None = option(None, "What is demanded: TOML with tables snp, tdx or gpu.")
    as_json: bool = option(False, "Print JSON instead of a table.", name="json")

    def demands(self) -> "Policy":
        from cloister.attest.policy import load_policy

        return load_policy(self.policy)

    def certificates(self) -> list[bytes]:
        if self.more_certs and not self.certs:
            hint = "Evidence follows --evidence, certificates follow --certs."
            raise SetupError(f"What is {self.more_certs[0]} for?", hint=hint)
        return [read_file(path) for path in (*(self.certs or ()), *(self.more_certs or ()))]

    def one_collateral(self) -> bytes | None:
        if len(self.collateral or ()) > 1:
            raise SetupError("One piece of evidence takes one collateral.", hint="Give --collateral once.")
        return read_file(self.collateral[0]) if self.collateral else None

    def asked_nonce(self) -> bytes | None:
        try:
            return None if self.nonce is None else bytes.fromhex(self.nonce.removeprefix("0x"))
        except ValueError:
            raise SetupError("--nonce takes hexadecimal digits, two for each byte.") from None

    def report_data(self) -> bytes | None:
        """The 64 bytes a report must carry: a shorter nonce stands at their beginning."""
        nonce = self.asked_nonce()
        if nonce is not None and len(nonce) > _REPORT_DATA_BYTES:
            raise SetupError(f"--nonce has {len(nonce)} bytes; a report carries {_REPORT_DATA_BYTES}.")
        return None if nonce is None else nonce.ljust(_REPORT_DATA_BYTES, b"\0")


@attest.command("check")
@settings_command(EvidenceFiles)
def check(files: EvidenceFiles) -> None:
    """Check evidence from files: no network, no clock but --at.

    Without a policy that names what must have started, nothing passes (3). Exit code: 0 all demands hold, 1 a check
    failed, 3 something could not be checked, 2 wrong use or unreadable input. Checks without a demand, and failures
    that the policy tolerates, are shown as skipped.

    Examples:
      cloister attest check --kind snp --evidence report.bin --certs vcek.der --certs cert_chain.pem
      cloister attest check --kind tdx --evidence quote.bin --collateral collateral.json --nonce 00ff… --json
      cloister attest check --kind nvidia --evidence gpus.json --nonce 931d… --policy policy.toml
    """
    try:
        moment = read_time(files.at)
        verdict = _verify(files, moment)
    except CloisterError as wrong:
        if files.as_json:
            error = {"code": wrong.code, "message": wrong.message, "hint": wrong.hint}
            typer.echo(json.dumps({"verdict": "error", "error": error}, indent=2))
        print_error(wrong)
        raise typer.Exit(USAGE_EXIT) from None
    if files.as_json:
        typer.echo(json.dumps({"kind": _KINDS[files.kind], "at": moment.isoformat(), **verdict.as_json()}, indent=2))
    else:
        when, failed = f"at {moment:%Y-%m-%d %H:%M:%S %Z}", ", ".join(check.name for check in verdict.broken)
        incomplete = f"Incomplete, {when}: something that matters could not be checked."
        show_verdict(verdict, f"Passed, {when}.", incomplete, f"Failed, {when}: {failed}.")
    exit_by(verdict)


def _verify(files: EvidenceFiles, at: datetime) -> Verdict:
    kind = _KINDS.get(files.kind)
    if kind is None:
        hint = "--kind takes snp, tdx or nvidia."
        raise SetupError(f"Evidence of kind {files.kind!r} is not known.", hint=hint)
    checks = {"snp": _verify_snp, "tdx": _verify_tdx, "nvidia": _verify_gpus}
    return checks[kind](files, read_file(files.evidence), at)


def _verify_snp(files: EvidenceFiles, data: bytes, at: datetime) -> Verdict:
    from cloister.attest.snp import verify_snp
    from cloister.attest.snp.report import unwrap_report

    collateral = files.one_collateral()
    report, table = unwrap_report(_raw_report(data))
    pieces = [*map(unpack, (*files.certificates(), collateral or b"")), table]
    return verify_snp(report, pieces, at=at, policy=files.demands().snp, report_data=files.report_data())


def _verify_tdx(files: EvidenceFiles, data: bytes, at: datetime) -> Verdict:
    from cloister.attest.tdx import verify_tdx

    collateral, quote = files.one_collateral(), _raw_report(data)
    if files.certificates():
        typer.echo("Note: a TDX quote brings its certificates; --certs was not used.", err=True)
    return verify_tdx(quote, collateral, at=at, policy=files.demands().tdx, report_data=files.report_data())


def _verify_gpus(files: EvidenceFiles, data: bytes, at: datetime) -> Verdict:
    from cloister.attest.nvidia.reports import References, verify_gpu_reports

    nonce, certificates = files.asked_nonce(), files.certificates()
    beside = [read_file(path) for path in files.collateral or ()]
    manifests = tuple(one for one in beside if one.lstrip().startswith(b"<"))
    known = References(manifests, tuple(unpack(one) for one in beside if one not in manifests))
    chain = b"\n".join(certificates) or None
    return verify_gpu_reports(data, nonce, at=at, policy=files.demands().gpu, chain=chain, references=known)


def _raw_report(data: bytes) -> bytes:
    text = data.strip()
    if text.startswith((b"{", b"eyJ")):
        hint = "Take the report out: binary, hex or base64."
        raise EvidenceInvalid("This is JSON or a token, not the report or quote itself.", hint=hint)
    return unpack(data)
