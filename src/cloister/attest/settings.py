"""The settings that decide where prompts go, as a node attests to them, and what a policy may demand of them. hash =
SHA-256("cloister settings v1" ‖ 0 ‖ JSON with every field, names sorted, no spaces)"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.checks import Examination

DOMAIN = b"cloister settings v1\0"

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Place = Annotated[str, Meta(min_length=1, max_length=256)]
Pin = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z")]

Vaults = Literal["here", "elsewhere"]
Sandbox = Literal["whole", "degraded"]
Keys = Literal["own", "development"]
Mpc = Literal["off", "auto", "local", "elsewhere"]
Prefixes = Literal["none", "global", "partition", "safekv"]
Disk = Literal["none", "encrypted"]
Judge = Literal["none", "model"]


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
    prefixes: Prefixes = "none"  # who may reuse what was computed of a prompt at `open` (docs/prefix-cache.md)
    disk: Disk = "none"  # Whether such keys and values may leave memory.
    first_token_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0  # grid of first tokens where prefixes are shared
    judge: Judge = "none"  # whether the model may call public, at `shared`, what the detector was not sure of

    @property
    def vaults(self) -> Vaults:
        return "elsewhere" if self.vault_hosts else "here"

    @property
    def hash(self) -> bytes:
        return hashlib.sha256(DOMAIN + msgspec.json.encode(self, order="sorted")).digest()

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
            "they are not put on a disk" if self.disk == "none" else "they may be put on a disk, encrypted",
            f"where they are shared first tokens leave on a grid of {self.first_token_ms} ms"
            if self.first_token_ms
            else "first tokens leave when they are made",
            "what the detector is not sure of stays private at shared"
            if self.judge == "none"
            else "the model may call public at shared what the detector is not sure of",
        )

    def _about_mpc(self) -> str:
        if self.parties is not None:
            others = ", ".join(self.parties.addresses)
            return f"mpc is computed elsewhere ({self.parties.protocol}, {self.parties.beaver}): {others}"
        if self.mpc == "off":
            return "mpc is off"
        return f"mpc is computed by parties on the node itself ({self.mpc})"


class SettingsPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """[settings] of a policy. A list names what is accepted; without the list, everything is."""

    hashes: tuple[Pin, ...] | None = None  # SHA-256 of all settings together, as `cloister verify` shows it.
    vaults: tuple[Vaults, ...] | None = None
    sandbox: tuple[Sandbox, ...] | None = None
    keys: tuple[Keys, ...] | None = None
    mpc: tuple[Mpc, ...] | None = None
    prefixes: tuple[Prefixes, ...] | None = None
    disk: tuple[Disk, ...] | None = None
    judge: tuple[Judge, ...] | None = None
    parties: tuple[Pin, ...] | None = None  # Identities of parties on other machines; not checked at a node without any
    max_session_idle_s: Annotated[float, Meta(gt=0)] | None = None
    min_first_token_ms: Annotated[int, Meta(gt=0)] | None = None
    allow_unseen_vault_hosts: bool = False

    def relaxations(self) -> tuple[str, ...]:
        return ("allow_unseen_vault_hosts",) if self.allow_unseen_vault_hosts else ()

    def check(self, found: Examination, settings: AttestedSettings) -> None:
        shown = settings.hash.hex()
        if self.hashes is None:
            found.passed("settings hash", shown)
        else:
            known = shown in {pin.lower() for pin in self.hashes}
            found.check("settings hash", known, f"{shown} is not among the policy's settings.hashes", shown)
        for name in ("vaults", "sandbox", "keys", "mpc", "prefixes", "disk", "judge"):
            accepted: tuple[str, ...] | None = getattr(self, name)
            if accepted is not None:
                value: str = getattr(settings, name)
                reason = f"{value!r} is not among the policy's settings.{name}: {', '.join(accepted) or 'nothing'}"
                found.check(f"setting {name}", value in accepted, reason, value)
        if self.parties is not None and settings.parties is not None:
            identity = settings.parties.identity.hex()
            known = identity in {pin.lower() for pin in self.parties}
            found.check("setting parties", known, f"{identity} is not among the policy's settings.parties", identity)
        if (most := self.max_session_idle_s) is not None:
            kept = settings.session_idle_ms / 1000
            reason = f"a kept session stays for {kept:g} s, and the policy allows {most:g}"
            found.check("setting session idle", kept <= most, reason, f"{kept:g} s")
        if (least := self.min_first_token_ms) is not None:
            step = settings.first_token_ms
            reason = f"first tokens leave on a grid of {step} ms, and the policy wants {least}"
            found.check("setting first token", step >= least, reason, f"{step} ms")
