"""What a user demands of a node, in one TOML file (docs/client.md). Every default is strict. No file can accept the
software attester, which proves nothing: only `--allow-software-tee`, where the client is started, can."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.attest.evidence import Pin, SettingsPolicy
from cloister.attest.nvidia.reports import GpuPolicy
from cloister.attest.snp import SnpPolicy
from cloister.attest.tdx import TdxPolicy
from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import read_bounded
from cloister.transparency.checkpoint import USUAL_CHECKPOINT_AGE_S, Predicate, ReleaseTrust, SigstoreTrust
from cloister.transparency.proof import order_of

MAX_FILE_BYTES = 4 << 20
DEFAULT_MAX_AGE_S = 3600.0
TOKEN_FIELDS = ("gpu_keys", "issuers", "leeway_seconds")  # that older policies may have
PARTS = ("settings", "snp", "tdx", "gpu")
Layer = Annotated[str, Meta(min_length=1, max_length=64)]


class LogRules(Struct, frozen=True, forbid_unknown_fields=True):
    """Logs by key (any of them will do), and how many witnesses must have signed (all, unless a quorum is given)."""

    logs: Annotated[tuple[str, ...], Meta(min_length=1)]
    witnesses: tuple[str, ...] = ()
    quorum: Annotated[int, Meta(ge=0)] | None = None
    max_checkpoint_age_s: Annotated[float, Meta(gt=0, le=366 * 24 * 3600)] = USUAL_CHECKPOINT_AGE_S
    """How long ago the witnesses may have signed. A revocation can be held back for as long."""


class SigstoreRules(Struct, frozen=True, forbid_unknown_fields=True):
    trusted_root: str
    identity: Annotated[str, Meta(min_length=1)]
    issuer: Annotated[str, Meta(min_length=1)]
    repository: Annotated[str, Meta(min_length=1)] | None = None
    ref: Annotated[str, Meta(min_length=1)] | None = None
    workflow: Annotated[str, Meta(min_length=1)] | None = None
    predicates: Annotated[tuple[Predicate, ...], Meta(min_length=1)] | None = None  # of in-toto statements


class _Demands(Struct, frozen=True):
    tees: Annotated[tuple[Literal["sev-snp", "tdx"], ...], Meta(min_length=1)] = ("sev-snp", "tdx")
    measurements: tuple[Pin, ...] = ()  # of manifests; if empty, a log or Sigstore says which
    max_age_s: Annotated[float, Meta(gt=0, le=7 * 24 * 3600)] = DEFAULT_MAX_AGE_S
    accept_missing_layers: tuple[Layer, ...] | None = None
    """Any other missing layer fails. The default accepts none at a node with hardware, else node.UNPRIVILEGED."""
    require_gpu: bool = False
    weights: tuple[Pin, ...] | None = None  # SHA-256, packed as the node serves them (`cloister verify` shows it)
    settings: SettingsPolicy = SettingsPolicy()
    snp: SnpPolicy = SnpPolicy()
    tdx: TdxPolicy = TdxPolicy()
    gpu: GpuPolicy = GpuPolicy()


class _Rules(_Demands, frozen=True, forbid_unknown_fields=True):
    snp_revocation_lists: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    tdx_collateral: str | None = None
    gpu_manifests: tuple[str, ...] = ()
    gpu_ocsp: tuple[str, ...] = ()
    log: LogRules | None = None
    sigstore: SigstoreRules | None = None
    minimum_version: str | None = None


class Policy(_Demands, frozen=True):
    """What a node must prove. The default accepts real TEEs only, and knows no log yet: name one, or measurements."""

    release: ReleaseTrust = ReleaseTrust()
    snp_revocation_lists: tuple[bytes, ...] = ()  # AMD's revocation lists (files), for nodes that bring none along.
    tdx_collateral: bytes | None = None  # JSON as dcap-qvl takes it, for nodes that bring none along
    gpu_manifests: tuple[bytes, ...] = ()  # XML, of the drivers and VBIOSes whose reports pass
    gpu_ocsp: tuple[bytes, ...] = ()  # DER, for manifests and GPUs; a node may bring more
    allow_software_tee: bool = False  # only then may a node's log key be learnt on first use

    @property
    def names_releases(self) -> bool:
        return bool(self.measurements or self.release.logs or self.release.sigstore)

    def relaxations(self) -> tuple[str, ...]:
        age_s = self.release.max_checkpoint_age_s
        return (
            *(["--allow-software-tee"] if self.allow_software_tee else ()),
            *(f"accept_missing_layers {layer}" for layer in self.accept_missing_layers or ()),
            *(f"{part}.{name}" for part in PARTS for name in getattr(self, part).relaxations()),
            # A log without witnesses may show each client another past, and an old one for ever.
            *(["log without witnesses"] if self.release.logs and not self.release.needed else ()),
            *([f"log.max_checkpoint_age_s {age_s:.0f}"] if age_s > USUAL_CHECKPOINT_AGE_S else ()),
        )


def load_policy(policy: Policy | Path | str | None, *, allow_software_tee: bool = False) -> Policy:
    if policy is None:
        policy = Policy()
    elif not isinstance(policy, Policy):
        policy = read_policy(Path(policy))
    return msgspec.structs.replace(policy, allow_software_tee=True) if allow_software_tee else policy


def read_policy(path: Path) -> Policy:
    """The policy in a TOML file; the files it names are looked for beside it."""
    try:
        table = tomllib.loads(_read(path).decode("utf-8"))
    except (ValueError, RecursionError):
        raise SetupError("The policy is not valid TOML.", hint=f"Look at {path}.") from None
    try:
        rules = msgspec.convert(table, _Rules)
    except (msgspec.ValidationError, ValueError) as wrong:
        of_tokens = any(f"`{name}`" in str(wrong) for name in TOKEN_FIELDS)
        hint = "Remove it: GPUs prove themselves by their reports, no longer by NVIDIA's tokens. " if of_tokens else ""
        raise SetupError(f"The policy cannot be used: {wrong}.", hint=f"{hint}Look at {path}.") from None
    policy = Policy(
        **{name: getattr(rules, name) for name in _Demands.__struct_fields__},
        release=_release(rules, path),
        tdx_collateral=None if rules.tdx_collateral is None else _read(path.parent / rules.tdx_collateral),
        snp_revocation_lists=tuple(_read(path.parent / name) for name in rules.snp_revocation_lists),
        gpu_manifests=tuple(_read(path.parent / name) for name in rules.gpu_manifests),
        gpu_ocsp=tuple(_read(path.parent / name) for name in rules.gpu_ocsp),
    )
    # A mistyped key should be found when the policy is read, not when a node is.
    try:
        policy.release.log_keys(), policy.release.witness_keys()
    except (EvidenceInvalid, SetupError) as wrong:
        advice = f"Look at [log] in {path}; `cloister log create` printed the key. {wrong.hint or ''}".strip()
        raise SetupError(f"The policy's logs or witnesses cannot be used: {wrong.message}", hint=advice) from None
    return policy


def _release(rules: _Rules, path: Path) -> ReleaseTrust:
    known: dict[str, Any] = msgspec.structs.asdict(rules.log) if rules.log else {}
    if (signers := rules.sigstore) is not None:
        given = {name: value for name, value in msgspec.structs.asdict(signers).items() if value is not None}
        known["sigstore"] = SigstoreTrust(**given | {"trusted_root": _read(path.parent / signers.trusted_root)})
    if rules.minimum_version is not None:
        if not known:
            message = "minimum_version needs [log] or [sigstore]: a measurement alone names no version."
            raise SetupError(message, hint=f"Look at {path}.")
        if order_of(rules.minimum_version) is None:
            hint = f"Like 1.2.0. Look at {path}."
            raise SetupError("The policy's minimum_version is not numbers and dots.", hint=hint)
        known["minimum_version"] = rules.minimum_version
    return ReleaseTrust(**known)


def _read(path: Path) -> bytes:
    return read_bounded(path, MAX_FILE_BYTES, hint=f"Look at {path}.")
