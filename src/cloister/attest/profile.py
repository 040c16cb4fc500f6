"""Profiles: what the settings of a node must be for it to call itself so. The node does not start otherwise; a client
compares again, by the settings in the evidence. `lab` demands nothing."""

from dataclasses import dataclass

from cloister.attest.attester import Tee
from cloister.attest.evidence import AttestedSettings, Profile
from cloister.errors import SetupError


@dataclass(frozen=True, slots=True)
class Demand:
    """`accepted`: values of a setting as evidence has it. `change`: what an operator gives instead."""

    setting: str
    accepted: tuple[str, ...]
    change: str


_TENANTS = (
    Demand("keys", ("own",), "--keys FILE"),
    Demand("sandbox", ("whole",), "no --allow-degraded-sandbox"),
    Demand("prefixes", ("none", "partition", "registered", "counted"), "another --prefix-policy than global"),
    Demand("shared", ("none", "partition", "registered", "counted"), "another --shared-policy than global"),
    Demand("verified", ("sample", "late", "all"), "another --verify than off"),
)
_PCC = (
    Demand("keys", ("own",), "--keys FILE"),
    Demand("sandbox", ("whole",), "no --allow-degraded-sandbox"),
    Demand("prefixes", ("none", "partition"), "--prefix-policy none or partition"),
    Demand("shared", ("none", "partition", "registered"), "--shared-policy registered, partition or none"),
    Demand("verified", ("all",), "--verify all"),
    Demand("mpc", ("off", "elsewhere"), "--mpc off, or --mpc-parties"),
)
DEMANDS: dict[Profile, tuple[Demand, ...]] = {"lab": (), "tenants": _TENANTS, "pcc": _PCC}


def broken_demands(settings: AttestedSettings, tee: Tee, code: str) -> list[str]:
    """What the profile that these settings name wants otherwise."""
    found = [
        f"{demand.setting} is {getattr(settings, demand.setting)!r} (wanted: {demand.change})"
        for demand in DEMANDS[settings.profile]
        if getattr(settings, demand.setting) not in demand.accepted
    ]
    if settings.profile == "pcc":
        found += ["no node list is followed (wanted: --cloud)"] if not settings.cloud else []
        found += ["no hardware attests the machine (wanted: SEV-SNP or TDX)"] if tee == "none" else []
        found += ["the code is no release's (wanted: --release)"] if code != "release" else []
    return found


def check_profile(settings: AttestedSettings, tee: Tee, *, released: bool) -> None:
    """SetupError unless this node may call itself by its profile."""
    if found := broken_demands(settings, tee, "release" if released else "unmeasured"):
        raise SetupError(
            f"These settings break the profile {settings.profile!r}: {'; '.join(found)}.",
            hint="Change them, or serve with --profile lab.",
        )
