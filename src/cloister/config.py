"""The one typed settings object of a server; `cli.generated` builds the commands from it. A field without `option` is a
limit that tests set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

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


def option(default: Any, description: str, *, bounds: dict[str, Any] | None = None, **shown: Any) -> Any:
    """A settings field that the command line offers; `...` as default means that it must be given.

    `bounds` goes to pydantic's Field (ge, le, min_length, …). `shown` says how the option looks, each key optional:
    `name` (else the field's name; "--a/--b" for a switch with two words), `panel` (its heading in --help), `metavar`,
    `show_default` (a text instead of the value), `envvar`, `argument` (True: a positional argument), `hidden`, and
    `command_default` where the command has another default than code that builds the settings.
    """
    return Field(default, description=description, json_schema_extra={"option": shown}, **(bounds or {}))


def at_least(least: float) -> dict[str, Any]:
    return {"ge": least}


def between(least: float, most: float) -> dict[str, Any]:
    return {"ge": least, "le": most}


def only(*names: str) -> dict[str, Any]:
    """For a field that is a model: the command offers these of its fields."""
    return {"only": names}


def cache_folder() -> Path:
    """Where converted models and built kernels live: $CLOISTER_CACHE, or the user's cache folder."""
    chosen = os.environ.get("CLOISTER_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cloister"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*")
    @classmethod
    def _paths_are_absolute(cls, value: object) -> object:
        """Other processes read these files, and their working folder may differ."""
        return value.absolute() if isinstance(value, Path) else value


class GatewaySettings(_Frozen):
    host: str = option("127.0.0.1", "Address to listen on. Other than loopback needs --keys.")
    port: int = option(8000, "Port to listen on; 0: any free port.", bounds=between(0, 65535))
    keys_file: Path | None = option(
        None, "Keys file.", name="keys", metavar="FILE", show_default="the development key, on loopback only"
    )
    served_model_name: str | None = option(
        None,
        "What users call the model.",
        bounds={"min_length": 1, "max_length": 256},
        metavar="NAME",
        show_default="the model's own name",
    )
    request_timeout_s: float = option(
        600.0, "Seconds one request may take.", bounds=at_least(0.1), name="request-timeout"
    )
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_connections: int = Field(default=2048, ge=1, description="HTTP connections at once")
    max_connections_of_one: int = Field(default=256, ge=1, description="of one address, unless it is this machine's")


class EngineSettings(_Frozen):
    dtype: Dtype = option("bf16", "Precision of weights and arithmetic.")
    weights: WeightFormat = option(
        "as-dtype", "int8: weights take half the memory; slower, and the model differs slightly."
    )
    kernels: KernelChoice = option("auto", "Which kernels compute.")
    threads: int = option(0, "Compute threads; 0: every core.", bounds=at_least(0))
    kv_cache_mib: int = option(1024, "Memory for the KV cache.", bounds=at_least(1))
    cache_disk_bytes: int = option(
        0, "Disk space for encrypted KV blocks that the KV cache has no room for; 0: none.", bounds=at_least(0)
    )
    cache_host_bytes: int = option(
        0, "Host memory for KV blocks that a GPU's KV cache has no room for; 0: none.", bounds=at_least(0)
    )
    max_running: int = option(64, "Sequences decoded at once.", bounds=at_least(1))
    chunk_tokens: int = option(
        512,
        "Tokens in one step at most: half a second's worth, and fewer while several tenants are active.",
        bounds=at_least(1),
    )
    max_context: int = option(0, "Longest prompt plus answer; 0: what the model allows.", bounds=at_least(0))
    max_waiting: int = option(1024, "Requests that may wait for a place.", bounds=at_least(1))
    max_waiting_per_tenant: int = Field(default=512, ge=1)
    attention_processes: int = option(
        8,
        "On a GPU under MPS: this number of processes holds the keys and values of prompts; 0: each vault holds them.",
        bounds=between(0, 16),
        panel="Vaults",
    )
    vaults_outside_mps: bool = option(
        False,
        "On a GPU under MPS: vaults take turns with all other processes, and their faults cannot end those.",
        name="--vaults-outside-mps/--vaults-in-mps",
        panel="Vaults",
    )
    vault_kv_mib: int = option(
        256, "Memory for one vault's KV cache, taken as it fills.", bounds=at_least(1), panel="Vaults"
    )
    link_deadline_ms: int = option(
        2000, "How long a step waits for a vault's answer.", bounds=at_least(1), panel="Vaults"
    )

    @property
    def cores(self) -> int:
        return self.threads or usable_cores()


class MachineSettings(_Frozen):
    allow_degraded_sandbox: bool = option(
        False, "Serve although this kernel lacks a layer of the sandbox.", panel="Vaults"
    )
    attester: AttesterChoice = option(
        "auto",
        "What signs this machine's evidence: its firmware (tsm), the vTPM of an Azure VM (azure), software alone, or "
        "the strongest of these that works here (auto).",
        panel="Evidence",
    )
    gpu_evidence: GpuEvidenceChoice = option(
        "auto",
        "Whether evidence shows this machine's GPUs: always, or the server does not start (nvml); where they are in "
        "confidential mode (auto); or not.",
        panel="Evidence",
    )
    release: Path | None = option(
        None,
        "The transparency log that has the release which runs; see `cloister log`.",
        metavar="DIR",
        show_default="a development log",
        panel="Evidence",
    )


class ControllerSettings(MachineSettings):
    max_vaults: int = option(64, "Sessions that have a vault at once.", bounds=at_least(1), panel="Vaults")
    spare_vaults: int = option(2, "Fresh vaults waiting for new sessions.", bounds=at_least(0), panel="Vaults")
    session_idle_s: float = option(
        600.0,
        "Seconds a named session waits for its next request.",
        bounds=at_least(0.1),
        name="session-idle",
        panel="Vaults",
    )
    gpu_in_turns: bool = option(False, "On a GPU: no MPS, processes take turns; without partitioned.", panel="Vaults")
    vault_host: str | None = option(
        None,
        "Keep all vaults on another machine; see `cloister vault serve`.",
        metavar="ADDRESS",
        show_default="on this one",
        panel="Vaults",
    )
    vault_host_key: Path | None = option(None, "The key shared with that machine.", metavar="FILE", panel="Vaults")
    vault_host_policy: Path | None = option(
        None,
        "What that machine must prove, in TOML.",
        metavar="FILE",
        show_default="this server's release; a TEE if this machine is one",
        panel="Vaults",
    )
    max_waiting_for_vaults: int = Field(default=1024, ge=0, description="requests that may wait for a vault")
    vault_ready_s: float = Field(default=10.0, gt=0, description="how long a new vault may take to seal itself")
    vault_deadline_s: float = Field(default=15.0, gt=0, description="how long a vault may hold the cores")
    service_deadline_s: float = Field(default=60.0, gt=0, description="how long the service may take to make way")
    prefix_policy: PolicyName = option(
        "none",
        "At the level open: whose computed prompts a tenant may reuse. none: no reuse; partition: its own; safekv: as "
        "partition, since no detector reads prompts at open; global: those of all tenants; timing then reveals "
        "what others wrote. (The level shared always uses safekv with a detector: tenants share the parts of "
        "prompts that it passes.)",
        panel="Shared prompts",
    )
    quantise_ttft_ms: int = option(
        0,
        "Where prompts are shared between tenants, let first tokens leave on a grid of MS milliseconds, and count no "
        "shared tokens in usage; 0: off.",
        bounds=between(0, 60_000),
        name="quantise-ttft",
        metavar="MS",
        panel="Shared prompts",
    )
    detector: bool = option(
        False,
        "Find the parts of prompts at the level shared that hold nothing private; without it nothing is shared.",
        command_default=True,
        panel="Shared prompts",
    )
    detector_rules: Path | None = option(
        None, "Signed rules of what is private, read again when they change.", metavar="FILE", panel="Shared prompts"
    )
    detector_key: str | None = option(
        None, "The key that must have signed --detector-rules.", metavar="KEY", panel="Shared prompts"
    )
    judge: bool = option(
        False,
        "Where the detector is not sure, ask the model itself while it serves no request.",
        name="--judge/--no-judge",
        panel="Shared prompts",
    )
    sealed_weights: Path | None = option(
        None,
        "Serve a provider's sealed weights once it released their key; see `cloister weights`.",
        metavar="FILE",
        panel="Sealed weights",
    )
    provider_key: str | None = option(
        None, "The key that must have signed them.", metavar="KEY", panel="Sealed weights"
    )


class MpcSettings(_Frozen):
    """`auto` starts parties here with the first request for the level; with `parties` they are elsewhere."""

    mode: MpcChoice = option(
        "off",
        "auto: offered where `make mpc` was done, and three parties are started on this machine with the first request "
        "for it, each taking about 2.9 GB with the default model. local: start them now.",
        name="mpc",
        command_default="auto",
        panel="Level mpc",
    )
    parties: Path | None = option(
        None,
        "parties.toml: the parties are elsewhere; see `cloister mpc`.",
        name="mpc-parties",
        metavar="FILE",
        show_default="on this machine",
        panel="Level mpc",
    )
    max_context: int = option(
        512, "Longest prompt plus answer on shares.", bounds=at_least(32), name="mpc-context", panel="Level mpc"
    )
    draft_tokens: int = option(
        0,
        "Tokens guessed ahead and verified in one pass: pays where messages are slow.",
        bounds=between(0, 15),
        name="mpc-drafts",
        panel="Level mpc",
    )
    cache: MpcCache = option(
        "full",
        "full: a token reads the whole prompt. mpcache: a tenth of it; fewer bytes, more time and messages.",
        name="mpc-cache",
        panel="Level mpc",
    )


class Settings(_Frozen):
    model: str | None = option(
        None,
        "A model's folder, a GGUF file, a name that `cloister models` lists, or a hub id.",
        show_default="SmolLM2-135M-Instruct",
    )
    gateway: GatewaySettings = GatewaySettings()
    engine: EngineSettings = EngineSettings()
    controller: ControllerSettings = ControllerSettings()
    mpc: MpcSettings = MpcSettings()


class VaultHostSettings(MachineSettings):
    listen: str = option(..., "HOST:PORT, [IPv6]:PORT or vsock:any:PORT.", metavar="ADDRESS")
    key_file: Path = option(..., "The shared key; see `cloister vault key new`.", name="key", metavar="FILE")
    model: str | None = option(
        None, "The server's model: folder, GGUF file or hub id.", show_default="SmolLM2-135M-Instruct"
    )
    engine: EngineSettings = Field(
        default=EngineSettings(),
        json_schema_extra=only("dtype", "weights", "threads", "kernels", "chunk_tokens", "max_context", "vault_kv_mib"),
    )
    max_vaults: int = option(80, "Vaults at once, spare ones included.", bounds=at_least(1), panel="Vaults")
    vault_deadline_s: float = Field(default=30.0, gt=0, description="how long a vault may hold the cores")
