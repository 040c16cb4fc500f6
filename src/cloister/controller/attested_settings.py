"""Settings that evidence includes; tests/controller/settings_tables.py has the reason for each, or fails."""

from math import ceil

from cloister.access.cloud import read_cloud
from cloister.attest.evidence import AttestedSettings, Mpc, Sandbox
from cloister.config import Settings, VaultHostSettings
from cloister.controller.external_engine import describe_engine
from cloister.controller.external_level import is_off, load_level
from cloister.levels import MPC
from cloister.verify_mode import VerifyMode


def attested_settings(settings: Settings) -> AttestedSettings:
    """Reads the parties' file: SetupError if it is unusable."""
    controls, parties = settings.controller, settings.mpc.parties
    verify = VerifyMode.of(controls.verify)
    mode: Mpc = "off" if is_off(settings) else settings.mpc.mode if parties is None else "elsewhere"
    return AttestedSettings(
        sandbox="degraded" if controls.allow_degraded_sandbox else "whole",
        keys="own" if settings.gateway.keys_file else "development",
        session_idle_ms=ceil(1000 * controls.session_idle_s),
        mpc=mode,
        parties=None if parties is None else load_level(MPC).parties(settings),
        vault_hosts=() if controls.vault_host is None else (controls.vault_host,),
        prefixes=controls.prefix_policy,
        shared=controls.shared_policy,
        share_epsilon_ppm=round(controls.share_epsilon * 1_000_000),
        share_threshold=controls.share_threshold,
        veto="detector" if controls.detector else "none",
        templates=controls.templates_key or "",
        first_token_ms=controls.quantise_ttft_ms,
        verified=verify.name,
        verified_ppm=round(verify.share * 1_000_000),
        beat_ms=settings.gateway.beat_ms,
        private_layers=settings.engine.private_layers,
        cloud=read_cloud(settings.gateway).digest.hex() if settings.gateway.cloud else "",
        profile=controls.profile,
        engine=settings.engine.kind,
        engine_details=describe_engine(settings),
        weights=settings.engine.weights_form,
    )


def attested_host_settings(settings: VaultHostSettings) -> AttestedSettings:
    """Sessions are the server's: a vault ends with its connection there."""
    sandbox: Sandbox = "degraded" if settings.allow_degraded_sandbox else "whole"
    weights = settings.engine.weights_form
    return AttestedSettings(sandbox=sandbox, keys="own", session_idle_ms=0, mpc="off", weights=weights)
