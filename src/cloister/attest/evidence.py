"""What a node shows a client. Nothing in it counts before the report's signature and its data are checked:
SHA-512(domain ‖ nonce ‖ channel key ‖ release measurement ‖ hash of GPU evidence ‖ hash of statement) (Petridish §4.1).
GPUs sign SHA-256(domain of GPUs ‖ domain ‖ nonce ‖ channel key ‖ release measurement), so that no other's pass."""

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.attest.attester import Tee
from cloister.checks import Examination, decode_evidence
from cloister.errors import EvidenceInvalid
from cloister.transparency.proof import ReleaseProof

SETTINGS_DOMAIN = b"cloister settings v1\0"
Place = Annotated[str, Meta(min_length=1, max_length=256)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Pin = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z")]
Vaults = Literal["here", "elsewhere"]
Sandbox = Literal["whole", "degraded"]
Keys = Literal["own", "development"]
Mpc = Literal["off", "auto", "local", "elsewhere"]
Prefixes = Literal["none", "partition", "registered", "counted", "global"]
Veto = Literal["none", "detector"]
Verified = Literal["off", "sample", "late", "all"]
Profile = Literal["lab", "tenants", "pcc"]
Engine = Literal["own", "vllm"]
Weights = Literal["bf16", "fp32", "int8"]


class Parties(Struct, frozen=True, forbid_unknown_fields=True):
    """The parties of `mpc` on other machines. `identity` is the hash of everything that identifies them."""

    protocol: Annotated[str, Meta(max_length=32)]
    beaver: Annotated[str, Meta(max_length=32)]
    addresses: Annotated[tuple[Place, ...], Meta(max_length=8)]
    identity: Digest


class AttestedSettings(Struct, frozen=True, forbid_unknown_fields=True):
    sandbox: Sandbox
    keys: Keys
    session_idle_ms: Annotated[int, Meta(ge=0, lt=1 << 53)]
    mpc: Mpc
    parties: Parties | None = None
    vault_hosts: Annotated[tuple[Place, ...], Meta(max_length=4)] = ()  # none: on the node itself
    prefixes: Prefixes = "none"  # which tenants may reuse what is computed of a prompt at `open` (docs/prefix-cache.md)
    shared: Prefixes = "none"  # the same at `shared`
    share_epsilon_ppm: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0
    share_threshold: Annotated[int, Meta(ge=0, le=100)] = 0
    veto: Veto = "none"  # whether a detector keeps private what many sent
    templates: Annotated[str, Meta(max_length=256)] = ""  # whose signature registers texts that tenants share
    first_token_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0  # grid of first tokens where prefixes are shared
    verified: Verified = "off"  # what a vault computes again of its answers (docs/threat-model.md)
    verified_ppm: Annotated[int, Meta(ge=0, le=1_000_000)] = 0  # of requests
    beat_ms: Annotated[int, Meta(ge=0, le=10_000)] = 0  # of streams over plain HTTP, which it pads, too
    private_layers: Annotated[int, Meta(ge=0, le=64)] = 0  # a model's first, which vaults compute alone
    cloud: Annotated[str, Meta(max_length=64)] = ""  # SHA-256, in hex, of the list of nodes and token keys
    profile: Profile = "lab"  # what the node calls itself; a client compares the settings with what that demands
    engine: Engine = "own"  # what decodes; no release measures another than our own
    engine_details: Annotated[str, Meta(max_length=512)] = ""  # of another engine: its version and arguments
    weights: Weights = "bf16"  # their form; int8 answers a little differently

    @property
    def vaults(self) -> Vaults:
        return "elsewhere" if self.vault_hosts else "here"

    @property
    def hash(self) -> bytes:
        return hashlib.sha256(SETTINGS_DOMAIN + msgspec.json.encode(self, order="sorted")).digest()

    def as_json(self) -> dict[str, Any]:
        """For `cloister verify --json`: hashes in hex, as policies have them, and the words."""
        shown: dict[str, Any] = msgspec.to_builtins(self) | {"in_words": list(self.in_words())}
        if self.parties is not None:
            shown["parties"]["identity"] = self.parties.identity.hex()
        return shown

    def in_words(self) -> tuple[str, ...]:
        places = ", ".join(self.vault_hosts)
        return (
            f"vaults live on other machines: {places}" if self.vault_hosts else "vaults live on the node itself",
            "no layer of the sandbox may be missing but what `sandbox` names"
            if self.sandbox == "whole"
            else "layers of the sandbox may be missing (--allow-degraded-sandbox)",
            "each caller has an API key" if self.keys == "own" else "all callers share the development key",
            f"a kept session is forgotten when idle for {self.session_idle_ms / 1000:g} s",
            self._about_mpc(),
            f"prefixes of prompts at open are shared by the policy {self.prefixes!r}",
            self._about_sharing(),
            f"where they are shared first tokens leave on a grid of {self.first_token_ms} ms"
            if self.first_token_ms
            else "first tokens leave when they are made",
            self._about_verified(),
            f"vaults compute the first {self.private_layers} layers of answers alone"
            if self.private_layers
            else "the service computes all layers of answers",
            f"streams' events leave every {self.beat_ms} ms, in one size"
            if self.beat_ms
            else "events of streams over plain HTTP leave when they are made",
            f"anonymous tokens count here, by the list of nodes and keys {self.cloud}"
            if self.cloud
            else "no anonymous tokens are taken",
            f"the node's profile is {self.profile}",
            "the release's own engine decodes"
            if self.engine == "own"
            else f"{self.engine_details} decodes, which no release measures; neighbours may change an answer's bits",
            f"the weights are {self.weights}",
        )

    def _about_sharing(self) -> str:
        counted = f"more than {self.share_threshold} accounts, with noise of ε = {self.share_epsilon_ppm / 1e6:g}"
        signer = self.templates or "no key"
        return (
            f"prefixes at shared are shared by the policy {self.shared!r} (counted: {counted}; veto: {self.veto}; "
            f"templates are signed by {signer})"
        )

    def _about_verified(self) -> str:
        share = f"{self.verified_ppm / 1e4:g}% of answers"
        return (
            "at partitioned and obfuscated "
            + {
                "off": "what the service decodes is not computed again",
                "sample": f"the user's own vault computes {share} again while they leave",
                "late": "the user's own vault computes each answer again while it leaves",
                "all": "a token leaves when the user's own vault computed the same",
            }[self.verified]
            + "; at these levels, open and shared an answer that asks for it is verified before it leaves"
        )

    def _about_mpc(self) -> str:
        if self.parties is not None:
            others = ", ".join(self.parties.addresses)
            return f"mpc is computed elsewhere ({self.parties.protocol}, {self.parties.beaver}): {others}"
        if self.mpc == "off":
            return "mpc is off"
        return f"mpc is computed by parties on the node itself ({self.mpc})"


_LISTED = (
    *("vaults", "sandbox", "keys", "mpc", "prefixes", "shared", "veto", "verified", "profile", "engine", "weights"),
)


class SettingsPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """[settings] of a policy. A list names what is accepted; without the list, everything is."""

    hashes: tuple[Pin, ...] | None = None  # SHA-256 of all settings together, as `cloister verify` shows it.
    vaults: tuple[Vaults, ...] | None = None
    sandbox: tuple[Sandbox, ...] | None = None
    keys: tuple[Keys, ...] | None = None
    mpc: tuple[Mpc, ...] | None = None
    prefixes: tuple[Prefixes, ...] | None = None
    shared: tuple[Prefixes, ...] | None = None
    veto: tuple[Veto, ...] | None = None
    verified: tuple[Verified, ...] | None = None
    profile: tuple[Profile, ...] | None = None
    engine: tuple[Engine, ...] | None = None
    weights: tuple[Weights, ...] | None = None
    parties: tuple[Pin, ...] | None = None  # Identities of parties on other machines; not checked at a node without any
    max_session_idle_s: Annotated[float, Meta(gt=0)] | None = None
    min_first_token_ms: Annotated[int, Meta(gt=0)] | None = None
    min_beat_ms: Annotated[int, Meta(gt=0)] | None = None
    min_private_layers: Annotated[int, Meta(gt=0)] | None = None
    allow_unseen_vault_hosts: bool = False

    def relaxations(self) -> tuple[str, ...]:
        return ("allow_unseen_vault_hosts",) if self.allow_unseen_vault_hosts else ()

    def check(self, found: Examination, settings: AttestedSettings) -> None:
        shown = settings.hash.hex()
        found.listed("settings hash", shown, (shown,) if self.hashes is None else self.hashes, "settings.hashes")
        for name in _LISTED:
            accepted: tuple[str, ...] | None = getattr(self, name)
            if accepted is not None:
                value: str = getattr(settings, name)
                reason = f"{value!r} is not among the policy's settings.{name}: {', '.join(accepted) or 'nothing'}"
                found.check(f"setting {name}", value in accepted, reason, value)
        if self.parties is not None and settings.parties is not None:
            found.listed("setting parties", settings.parties.identity.hex(), self.parties, "settings.parties")
        if (most := self.max_session_idle_s) is not None:
            kept = settings.session_idle_ms / 1000
            reason = f"a kept session stays for {kept:g} s, and the policy allows {most:g}"
            found.check("setting session idle", kept <= most, reason, f"{kept:g} s")
        if (least := self.min_first_token_ms) is not None:
            step = settings.first_token_ms
            reason = f"first tokens leave on a grid of {step} ms, and the policy wants {least}"
            found.check("setting first token", step >= least, reason, f"{step} ms")
        if (least := self.min_beat_ms) is not None:
            reason = f"streams have a beat of {settings.beat_ms} ms, and the policy wants {least}"
            found.check("setting beat", settings.beat_ms >= least, reason, f"{settings.beat_ms} ms")
        if (least := self.min_private_layers) is not None:
            count = settings.private_layers
            reason = f"vaults compute {count} layers alone, and the policy wants {least}"
            found.check("setting private layers", count >= least, reason, str(count))


VERSION = 3
DOMAIN = b"cloister evidence v3\0"
HOST_DOMAIN = b"cloister vault host evidence v3\0"  # A vault host's evidence is no node's.
GPU_DOMAIN = b"cloister gpu nonce v1\0"
NONCE_BYTES = 32
MAX_EVIDENCE_BYTES = 1 << 20
Moment = Annotated[int, Meta(ge=0, lt=1 << 53)]  # Milliseconds since 1970.
Certificate = Annotated[bytes, Meta(max_length=16384)]


class GpuEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["report"]
    data: Annotated[bytes, Meta(max_length=262144)]
    ocsp: Annotated[tuple[Annotated[bytes, Meta(max_length=16384)], ...], Meta(max_length=64)] = ()
    """OCSP responses (DER) for the reports' certificates. NVIDIA signs them, so the node may bring them."""


class VaultHostPin(Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that keeps vaults for the node, and the SHA-256 of the only TLS certificate the node accepts there."""

    address: Annotated[str, Meta(max_length=256)]
    certificate: Digest


class Statement(Struct, frozen=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(max_length=256)]
    weights: Digest
    settings: AttestedSettings
    settings_hash: Digest  # Of `settings`: the reader computes it again.
    levels: Annotated[tuple[Annotated[str, Meta(max_length=32)], ...], Meta(max_length=16)] = ()
    missing_layers: tuple[Annotated[str, Meta(max_length=64)], ...] = ()
    started: int = 0  # Unix seconds; changes when the node starts again, and so does its channel key.
    vault_hosts: Annotated[tuple[VaultHostPin, ...], Meta(max_length=4)] = ()
    made_ms: Moment = 0  # When this was stated, by the node's own clock.
    key_until_ms: Moment = 0  # the channel key is held, unless a flood of messages uses it up before
    code: Literal["release", "unmeasured"] = "unmeasured"  # release: only its files and packages run
    oblivious: Annotated[bytes, Meta(max_length=32)] = b""  # SHA-256 of the OHTTP key configurations; empty: none
    instance: Annotated[bytes, Meta(max_length=32)] = b""  # drawn when the node starts; the log may name it
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0  # in this machine, all shown by the evidence; 0: none shown


class NodeEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1)]
    tee: Tee
    report: Annotated[bytes, Meta(max_length=65536)]
    channel_key: Digest
    measurement: Digest  # SHA-256 of the release's manifest; of the running source where there is no release.
    statement: Annotated[bytes, Meta(max_length=16384)]  # JSON of Statement, as bytes: what was hashed is what is read.
    certificates: Annotated[tuple[Certificate, ...], Meta(max_length=16)] = ()
    collateral: Annotated[bytes, Meta(max_length=262144)] = b""
    release: ReleaseProof | None = None
    gpu: GpuEvidence | None = None
    vault_hosts: Annotated[tuple["NodeEvidence", ...], Meta(max_length=4)] = ()
    """For the same nonce, with the hash of the TLS certificate, which the statement pins, instead of a channel key."""

    def report_data(self, nonce: bytes, domain: bytes = DOMAIN) -> bytes:
        gpu = self.gpu.data if self.gpu else b""
        return bind(nonce, self.channel_key, self.measurement, gpu, self.statement, domain)

    def gpu_nonce(self, nonce: bytes, domain: bytes = DOMAIN) -> bytes:
        return gpu_nonce(nonce, self.channel_key, self.measurement, domain)


def bind(
    nonce: bytes, channel_key: bytes, measurement: bytes, gpu: bytes, statement: bytes, domain: bytes = DOMAIN
) -> bytes:
    if not len(nonce) == len(channel_key) == len(measurement) == 32:
        raise EvidenceInvalid("A nonce, a channel key and a measurement have 32 bytes each.")
    gpu_hash = hashlib.sha256(gpu).digest() if gpu else bytes(32)
    parts = (domain, nonce, channel_key, measurement, gpu_hash, hashlib.sha256(statement).digest())
    return hashlib.sha512(b"".join(parts)).digest()


def gpu_nonce(nonce: bytes, channel_key: bytes, measurement: bytes, domain: bytes = DOMAIN) -> bytes:
    if not len(nonce) == len(channel_key) == len(measurement) == 32:
        raise EvidenceInvalid("A nonce, a channel key and a measurement have 32 bytes each.")
    return hashlib.sha256(b"".join((GPU_DOMAIN, domain, nonce, channel_key, measurement))).digest()


def write_evidence(evidence: NodeEvidence) -> bytes:
    return msgspec.json.encode(evidence)


class _Versioned(Struct):
    version: Annotated[int, Meta(ge=1)]


def read_evidence(data: bytes) -> NodeEvidence:
    found = decode_evidence(data, _Versioned, "Evidence", limit=MAX_EVIDENCE_BYTES).version
    if found != VERSION:
        hint = "Update the client." if found > VERSION else "The node is older: its operator updates it."
        raise EvidenceInvalid(f"The evidence has version {found}, not {VERSION}.", hint=hint)
    return decode_evidence(data, NodeEvidence, "Evidence")


def read_statement(data: bytes) -> Statement:
    return decode_evidence(data, Statement, "The node's statement")
