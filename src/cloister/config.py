"""The one typed settings object of a server. A field without `option` is a limit that tests set."""

import os
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cloister.cores import usable_cores
from cloister.errors import SetupError
from cloister.levels import PolicyName
from cloister.verify_mode import VerifyMode

Dtype = Literal["bf16", "fp32"]
WeightFormat = Literal["as-dtype", "int8"]
KernelChoice = Literal["auto", "gpu", "native", "reference"]
MpcChoice = Literal["auto", "local", "off"]
MpcCache = Literal["full", "mpcache"]
AttesterChoice = Literal["auto", "software", "tsm"]
ToolParser = Literal["auto", "hermes", "qwen3_coder", "llama3", "mistral", "gemma", "harmony"]
GpuEvidenceChoice = Literal["auto", "none", "nvml"]
EngineChoice = Literal["own", "vllm"]

DEVELOPMENT_KEY = "cloister-dev"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"  # as users read it


_LIMITS = ("ge", "le", "min_length", "max_length", "pattern")


def option(default: Any, description: str, **shown: Any) -> Any:
    """A command line's field; `...` must be given. Besides pydantic's limits: `name`, `panel`, `metavar`,
    `show_default`, `envvar`, `argument` (positional), `hidden`; `command_default`, which code ignores."""
    limits = {name: shown.pop(name) for name in _LIMITS if name in shown}
    return Field(default, description=description, json_schema_extra={"option": shown}, **limits)


_vaults = partial(option, panel="Vaults")
_evidence = partial(option, panel="Evidence")
_sharing = partial(option, panel="Shared prompts")
_verifying = partial(option, panel="Verified decoding")
_sealing = partial(option, panel="Sealed weights")
_mpc = partial(option, panel="Level mpc")


def only(*names: str) -> dict[str, Any]:
    """For a field that is a model: the command offers these of its fields."""
    return {"only": names}


def cache_folder() -> Path:
    """Where converted models and built kernels live: $CLOISTER_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("CLOISTER_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cloister"


def data_folder() -> Path:
    """What a user would miss: $CLOISTER_DATA, or the user's data folder."""
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(os.environ.get("CLOISTER_DATA") or base / "cloister")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*")
    @classmethod
    def _paths_are_absolute(cls, value: object) -> object:
        """Other processes read these files, and their working folder may differ."""
        return value.absolute() if isinstance(value, Path) else value


_ORIGIN = r"https?://[A-Za-z0-9.\-\[\]]+(:[0-9]{1,5})?"
_ORIGINS = rf"^{_ORIGIN}(,{_ORIGIN})*$"


class GatewaySettings(_Frozen):
    host: str = option("127.0.0.1", "Address to listen on. Other than loopback needs --keys.")
    port: int = option(8000, "Port to listen on; 0: any free port.", ge=0, le=65535)
    keys_file: Path | None = option(None, "Keys file.", name="keys", show_default="the development key, on loopback")
    tls_cert: Path | None = option(
        None, "Serve https with this certificate chain, in PEM; SIGHUP reads it again.", show_default="http"
    )
    tls_key: Path | None = option(None, "Its private key, in PEM, in a file of yours alone.", show_default="none")
    served_model_name: str | None = option(
        None, "What users call the model.", min_length=1, max_length=256, metavar="NAME", show_default="its own name"
    )
    request_timeout_s: float = option(600.0, "Seconds one request may take.", ge=0.1, name="request-timeout")
    drain_s: float = option(
        30.0,
        "Seconds that running answers get after SIGTERM, while new requests get 503. Ctrl-C ends the node at once.",
        **{"ge": 0, "name": "drain", "metavar": "SECONDS"},
    )
    beat_ms: int = option(
        0,
        "Events of a stream leave on this beat, all of one size; 0: at once. Sealed streams always have a beat.",
        **{"ge": 0, "le": 10_000, "name": "beat", "metavar": "MS"},
    )
    allow_origin: str | None = option(
        None,
        "Web pages of these origins may call the API from browsers: https://a.example,https://b.example",
        **{"pattern": _ORIGINS, "max_length": 4096, "show_default": "none", "metavar": "ORIGINS"},
    )
    cloud: Path | None = option(
        None, "Take anonymous tokens, too: the list of this cloud's nodes and token keys.", show_default="none"
    )
    node_name: str | None = option(None, "This node's name in that list.", metavar="NAME", show_default="none")
    spent: Path | None = option(None, "Where spent tokens are kept.", metavar="DIR", show_default="the data folder")
    token_budget: int = option(0, "What one token pays for, in tokens of text; 0: 16 of the model's contexts.", ge=0)
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_connections: int = Field(default=2048, ge=1, description="HTTP connections at once")
    max_connections_of_one: int = Field(default=256, ge=1, description="of one address, unless it is this machine's")

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SetupError("--tls-cert and --tls-key belong together.", hint="Give both for https, or neither.")
        return self


class EngineSettings(_Frozen):
    kind: EngineChoice = option("own", "What decodes. vllm: after `make vllm`; see docs/engines.md.", name="engine")
    tensor_parallel: int = option(
        1, "With --engine vllm: processes that share each layer; more than one are not sealed.", ge=1, le=64
    )
    dtype: Dtype = option("bf16", "Precision of weights and arithmetic.")
    weights: WeightFormat = option("as-dtype", "int8: on a CPU, half the memory and faster; answers differ slightly.")
    kernels: KernelChoice = option("auto", "Which kernels compute.")
    threads: int = option(0, "Compute threads; 0: every core.", ge=0)
    kv_cache_mib: int = option(1024, "Memory for the KV cache.", ge=1)
    max_running: int = option(64, "Sequences decoded at once.", ge=1)
    chunk_tokens: int = option(512, "Tokens in one step at most; fewer while several tenants are active.", ge=1)
    max_context: int = option(0, "Longest prompt plus answer; 0: what the model allows.", ge=0)
    tool_parser: ToolParser = option(
        "auto", "How calls of tools are written in answers; auto: as the model's chat template says.", metavar="FAMILY"
    )
    max_waiting: int = option(1024, "Requests that may wait for a place.", ge=1)
    max_waiting_per_tenant: int = Field(default=512, ge=1)
    attention_processes: int = _vaults(
        8,
        "On a GPU under MPS: processes that hold the keys and values of prompts, and answer the service.",
        ge=1,
        le=16,
    )
    vault_kv_mib: int = _vaults(256, "Memory for one vault's KV cache, taken as it fills.", ge=1)
    compact_prompts: bool = _vaults(
        True,
        "At obfuscated: approximate a request's prompts where it allows that; otherwise such requests are refused.",
    )
    watch_attention: bool = _vaults(
        False, "Answers that must not recite are also watched by their attention, on a CPU; each start takes longer."
    )
    private_layers: int = _vaults(
        0, "How many of the first layers vaults compute alone: what prompts add to these leaves no vault.", ge=0, le=64
    )
    speculate: int = _vaults(
        0,
        "At isolated: tokens guessed ahead, from prompt and answer; with --beat, so that streams do not show hits.",
        ge=0,
        le=8,
    )
    link_deadline_ms: int = _vaults(2000, "How long a step waits for a vault's answer.", ge=1)

    @property
    def cores(self) -> int:
        return self.threads or usable_cores()

    @property
    def weights_form(self) -> Literal["bf16", "fp32", "int8"]:
        return "int8" if self.weights == "int8" else self.dtype


class MachineSettings(_Frozen):
    log_format: Literal["text", "json"] = option("text", "Log lines for people, or one JSON object each.")
    allow_degraded_sandbox: bool = _vaults(False, "Serve although this kernel lacks a layer of the sandbox.")
    attester: AttesterChoice = _evidence(
        "auto",
        "What signs evidence: firmware (tsm), software, or the strongest here (auto).",
    )
    gpu_evidence: GpuEvidenceChoice = _evidence(
        "auto",
        "Whether evidence shows GPUs: always (nvml), or where they are in confidential mode (auto), or not (none).",
    )
    release: Path | None = _evidence(
        None, "The log that has this release; see `cloister log`.", metavar="DIR", show_default="a development log"
    )


class ControllerSettings(MachineSettings):
    profile: Literal["lab", "tenants", "pcc"] = _evidence(
        "lab",
        "What the node calls itself; it does not start where its settings break that. tenants: own keys, a whole "
        "sandbox, no prompt shared with all, verified answers. pcc: also a TEE, a release, --cloud and --verify all.",
    )
    tokens_a_day: int = option(
        0,
        "Tokens, of prompts and answers, that a tenant may use a day (UTC); 0: no limit. A key's own goes first.",
        ge=0,
    )
    requests_a_day: int = option(0, "Requests that a tenant may send a day (UTC); 0: no limit.", ge=0)
    usage: Path | None = option(
        None,
        "Count requests and tokens here, by day, tenant and level; see `cloister usage`.",
        metavar="FILE",
        show_default="the data folder if a tenant has a quota, else none",
    )
    max_vaults: int = _vaults(64, "Sessions that have a vault at once.", ge=1)
    spare_vaults: int = _vaults(2, "Fresh vaults waiting for new sessions.", ge=0)
    session_idle_s: float = _vaults(600.0, "Seconds that a named session is kept.", ge=0.1, name="session-idle")
    gpu_in_turns: bool = _vaults(False, "On a GPU: no MPS, processes take turns; without partitioned.")
    vault_host: str | None = _vaults(
        None, "Keep all vaults on another machine; see `cloister vault serve`.", metavar="ADDRESS"
    )
    vault_host_key: Path | None = _vaults(None, "The key shared with that machine.")
    vault_host_policy: Path | None = _vaults(
        None, "What it must prove, in TOML.", show_default="this server's release; a TEE if this machine is one"
    )
    verify: str = _verifying(
        "off",
        "What a request's own vault computes again of its answer. all: tokens leave when that gave the same; late: at "
        "once, at most 16 tokens ahead; sample:P: as late, for a share P of requests; off: nothing.",
        command_default="sample:0.1",
        metavar="MODE",
    )
    max_waiting_for_vaults: int = Field(default=1024, ge=0, description="requests that may wait for a vault")
    vault_ready_s: float = Field(default=30.0, gt=0, description="how long a new vault may take to seal itself")
    vault_deadline_s: float = Field(default=15.0, gt=0, description="how long a vault may hold the cores")
    service_deadline_s: float = Field(default=60.0, gt=0, description="how long the service may take to make way")
    shared_policy: PolicyName = _sharing(
        "counted",
        "At the level shared: what tenants find of each other's prompts. counted: registered templates, and beginnings "
        "that more than --share-threshold accounts sent; registered: templates alone; partition, none: nothing; "
        "global, for comparison: everything.",
    )
    share_epsilon: float = _sharing(
        1.0, "Noise on the count of accounts: Laplace(1/epsilon) for each page, for ever.", ge=0.01, le=1e9
    )
    share_threshold: int = _sharing(
        12, "Accounts, noise included, that must have sent a page before it is shared.", ge=0, le=100
    )
    templates: Path | None = _sharing(
        None, "Registered templates; read again after changes. See `cloister cache register`."
    )
    templates_key: str | None = _sharing(None, "The key that must have signed --templates.", metavar="KEY")
    prefix_policy: PolicyName = _sharing(
        "none",
        "At the level open: whose computed prompts a tenant may reuse. none: no reuse; global: those of all tenants, "
        "so that timing reveals what others wrote; every other policy: its own.",
    )
    quantise_ttft_ms: int = _sharing(
        100,
        "Where tenants with keys share prompts, first tokens leave on this grid; 0: off.",
        **{"ge": 0, "le": 60_000, "name": "quantise-ttft", "metavar": "MS"},
    )
    detector: bool = _sharing(
        False, "At the level shared: what looks private is not shared, however many sent it.", command_default=True
    )
    detector_rules: Path | None = _sharing(None, "Signed rules of what is private; read again after changes.")
    detector_key: str | None = _sharing(None, "The key that must have signed --detector-rules.", metavar="KEY")
    sealed_weights: Path | None = _sealing(None, "Serve sealed weights once the key comes; see `cloister weights`.")
    provider_key: str | None = _sealing(None, "The key that must have signed them.", metavar="KEY")

    @field_validator("verify")
    @classmethod
    def _mode_exists(cls, value: str) -> str:
        VerifyMode.of(value)
        return value


class MpcSettings(_Frozen):
    """`auto` starts parties here with the first request for the level; with `parties` they are elsewhere."""

    mode: MpcChoice = _mpc(
        "off",
        "auto: after `make mpc`, the first request starts three parties here of about 2.9 GB each. local: start now.",
        name="mpc",
        command_default="auto",
    )
    parties: Path | None = _mpc(
        None, "parties.toml: where the parties are; see `cloister mpc`.", name="mpc-parties", show_default="here"
    )
    max_context: int = _mpc(512, "Longest prompt plus answer on shares.", ge=32, name="mpc-context")
    draft_tokens: int = _mpc(0, "Tokens guessed ahead; pays where messages are slow.", ge=0, le=15, name="mpc-drafts")
    cache: MpcCache = _mpc(
        "full", "full: a token reads the whole prompt. mpcache: a tenth; fewer bytes, more messages.", name="mpc-cache"
    )


class Settings(_Frozen):
    model: str | None = option(None, "Folder, GGUF file, hub id or known name.", show_default=DEFAULT_MODEL)
    gateway: GatewaySettings = GatewaySettings()
    engine: EngineSettings = EngineSettings()
    controller: ControllerSettings = ControllerSettings()
    mpc: MpcSettings = MpcSettings()

    @model_validator(mode="after")
    def _private_layers_are_here(self) -> Self:
        if self.engine.private_layers and self.controller.vault_host:
            hint = "Leave out --private-layers, or --vault-host."
            raise SetupError("Vaults on another machine have no private layers.", hint=hint)
        return self

    @model_validator(mode="after")
    def _guesses_are_not_seen(self) -> Self:
        if self.engine.speculate and (not self.gateway.beat_ms or self.controller.vault_host):
            hint = "Give --beat, and leave out --vault-host; or leave out --speculate."
            raise SetupError("Without a beat, streams would show which guesses came true.", hint=hint)
        return self


class VaultHostSettings(MachineSettings):
    listen: str = option(..., "HOST:PORT, [IPv6]:PORT or vsock:any:PORT.", metavar="ADDRESS")
    key_file: Path = option(..., "The shared key; see `cloister vault key new`.", name="key")
    model: str | None = option(None, "The server's model.", show_default=DEFAULT_MODEL)
    engine: EngineSettings = Field(
        default=EngineSettings(),
        json_schema_extra=only(
            *(
                "dtype",
                "weights",
                "threads",
                "kernels",
                "chunk_tokens",
                "max_context",
                "vault_kv_mib",
                "compact_prompts",
                "watch_attention",
                "tool_parser",
            )
        ),
    )
    max_vaults: int = _vaults(80, "Vaults at once, spare ones included.", ge=1)
    vault_deadline_s: float = Field(default=30.0, gt=0, description="how long a vault may hold the cores")
