"""The one typed settings object.

The environment is read here (where the cache folder is) and by the command line's own options, nowhere else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cloister.cores import usable_cores
from cloister.levels import PolicyName

Dtype = Literal["bf16", "fp32"]
WeightFormat = Literal["as-dtype", "int8"]
KernelChoice = Literal["auto", "gpu", "native", "reference"]
MpcChoice = Literal["auto", "local", "off"]
MpcCache = Literal["full", "mpcache"]
AttesterChoice = Literal["auto", "software", "tsm", "azure"]
GpuEvidenceChoice = Literal["auto", "none", "nvml"]

DEVELOPMENT_KEY = "cloister-dev"


def cache_folder() -> Path:
    """Where converted models and built kernels live: $CLOISTER_CACHE, or the user's cache folder."""
    chosen = os.environ.get("CLOISTER_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cloister"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineSettings(_Frozen):
    """How the engine computes and what it may use."""

    dtype: Dtype = "bf16"
    weights: WeightFormat = Field(default="as-dtype", description="int8: weights take half the memory")
    kernels: KernelChoice = "auto"
    threads: int = Field(default=0, ge=0, description="compute threads; 0 means every core")
    kv_cache_mib: int = Field(default=1024, ge=1, description="memory for the paged KV cache")
    max_running: int = Field(default=64, ge=1, description="sequences decoded in one step at most")
    chunk_tokens: int = Field(default=512, ge=1, description="tokens of one step at most; beside other tenants fewer")
    max_context: int = Field(default=0, ge=0, description="0 means what the model allows")
    max_waiting: int = Field(default=1024, ge=1, description="requests that may wait before QueueFull")
    max_waiting_per_tenant: int = Field(default=512, ge=1)
    attention_processes: int = Field(
        default=8,
        ge=1,
        le=16,
        description="on a GPU under MPS: processes that hold prompts' keys and values and answer the service",
    )
    vault_kv_mib: int = Field(default=256, ge=1, description="memory for one vault's KV cache; taken as it fills")
    cache_disk_bytes: int = Field(
        default=0, ge=0, description="of a disk, for computed blocks that the KV cache has no room for; encrypted"
    )
    cache_host_bytes: int = Field(
        default=0, ge=0, description="of the host's memory, for blocks that a GPU's KV cache has no room for"
    )
    link_deadline_ms: int = Field(default=2000, ge=1, description="how long a step waits for a vault's answer")

    @property
    def cores(self) -> int:
        return self.threads or usable_cores()


NO_LONGER = {
    "system-prompt": "is gone: a mark shows nothing to other tenants any more. Use partition: a tenant finds its own "
    "prompts, marked or not."
}
"""Values of `prefix_policy` that there were, and what to do instead."""


class ControllerSettings(_Frozen):
    """How the controller keeps vaults and how patient it is."""

    allow_degraded_sandbox: bool = Field(default=False, description="serve although the kernel lacks a sandbox layer")
    gpu_in_turns: bool = Field(default=False, description="no MPS: processes have a GPU in turns, without partitioned")
    spare_vaults: int = Field(default=2, ge=0, description="fresh vaults kept waiting for new sessions")
    max_vaults: int = Field(default=64, ge=1, description="sessions that have a vault at once")
    max_waiting_for_vaults: int = Field(default=1024, ge=0, description="requests that may wait for a vault")
    session_idle_s: float = Field(default=600.0, gt=0, description="how long a kept session waits for its next request")
    vault_ready_s: float = Field(default=10.0, gt=0, description="how long a new vault may take to seal itself")
    vault_deadline_s: float = Field(default=15.0, gt=0, description="how long a vault may hold the cores")
    service_deadline_s: float = Field(default=60.0, gt=0, description="how long the service may take to make way")
    prefix_policy: PolicyName = Field(
        default="none", description="at the level open: who finds whose computed prompts (prefix.policy)"
    )

    @field_validator("prefix_policy", mode="before")
    @classmethod
    def _is_not_gone(cls, policy: object) -> object:
        if policy in NO_LONGER:
            raise ValueError(f"{policy} {NO_LONGER[str(policy)]}")
        return policy

    quantise_ttft_ms: int = Field(
        default=0,
        ge=0,
        le=60_000,
        description="step of the grid on which first tokens leave where prompts are shared",
    )
    detector: bool = Field(default=False, description="look for what may be shared in prompts at the level shared")
    detector_rules: Path | None = Field(default=None, description="file with signed rules of what is private")
    detector_key: str | None = Field(default=None, description="who must have signed them")
    judge: bool = Field(default=False, description="ask the served model where the detector is not sure")
    vault_host: str | None = Field(default=None, description="address of the machine that keeps the vaults")
    vault_host_key: Path | None = Field(default=None, description="file with the key that the vault host knows")
    vault_host_policy: Path | None = Field(default=None, description="file with what that machine must prove")
    sealed_weights: Path | None = Field(default=None, description="file of a provider's weights, encrypted and signed")
    provider_key: str | None = Field(default=None, description="who must have signed them")
    attester: AttesterChoice = Field(default="auto", description="who speaks for this machine in evidence")
    gpu_evidence: GpuEvidenceChoice = Field(default="auto", description="who speaks for its GPUs")
    release: Path | None = Field(default=None, description="folder of the log that has the release which runs")


class GatewaySettings(_Frozen):
    """The HTTP edge and its limits."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    keys_file: Path | None = None
    served_model_name: str | None = Field(
        default=None, min_length=1, max_length=256, description="what /v1/models says"
    )
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_connections: int = Field(default=2048, ge=1, description="HTTP connections at once")
    max_connections_of_one: int = Field(default=256, ge=1, description="of one address, unless it is this machine's")
    request_timeout_s: float = Field(default=600.0, gt=0)


class MpcSettings(_Frozen):
    """The level `mpc`: who the parties are, and what the MPC client may ask of them.

    `auto` offers the level where its packages are installed and starts parties on this machine with the first request
    for it; `local` starts them at once. With `parties` they are elsewhere, and nothing is started but the client.
    """

    mode: MpcChoice = "off"
    parties: Path | None = Field(default=None, description="file that says who and where the parties are")
    max_context: int = Field(default=512, ge=32, description="prompt and answer together, in tokens")
    draft_tokens: int = Field(default=0, ge=0, le=15, description="tokens guessed ahead and verified in one pass")
    cache: MpcCache = Field(default="full", description="how much of the prompt a token reads: mpc.cache.plan.PLANS")


class Settings(_Frozen):
    """Everything one server is told at start."""

    model: str | None = None
    engine: EngineSettings = EngineSettings()
    controller: ControllerSettings = ControllerSettings()
    gateway: GatewaySettings = GatewaySettings()
    mpc: MpcSettings = MpcSettings()


class VaultHostSettings(_Frozen):
    """Everything a machine that keeps vaults for a server elsewhere is told at start."""

    listen: str
    key_file: Path
    engine: EngineSettings = EngineSettings()
    max_vaults: int = Field(default=80, ge=1, description="connections at once: a server's sessions and spare vaults")
    vault_deadline_s: float = Field(default=30.0, gt=0, description="how long a vault may hold the cores")
    allow_degraded_sandbox: bool = False
    attester: AttesterChoice = Field(default="auto", description="who speaks for this machine in evidence")
    gpu_evidence: GpuEvidenceChoice = Field(default="auto", description="who speaks for its GPUs")
    release: Path | None = Field(default=None, description="folder of the log that has the release which runs")
