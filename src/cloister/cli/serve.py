"""`cloister serve`: settings from the command line, the model found, then this process becomes the controller.

`cloister key`: API keys for tenants. A key is shown once and kept nowhere; the server knows only its digest.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, NoReturn, get_args

import typer

from cloister.config import (
    NO_LONGER,
    AttesterChoice,
    ControllerSettings,
    Dtype,
    EngineSettings,
    GatewaySettings,
    GpuEvidenceChoice,
    KernelChoice,
    MpcCache,
    MpcChoice,
    MpcSettings,
    Settings,
    WeightFormat,
)
from cloister.errors import SetupError
from cloister.levels import PolicyName

if TYPE_CHECKING:
    from cloister.models.source import ModelFolder

_CONTROLLER = ControllerSettings()
_ENGINE = EngineSettings()
_GATEWAY = GatewaySettings()
_vaults = partial(typer.Option, rich_help_panel="Vaults")
_evidence = partial(typer.Option, rich_help_panel="Evidence")
_sealed = partial(typer.Option, rich_help_panel="Sealed weights")
_mpc = partial(typer.Option, rich_help_panel="Level mpc")
_MPC_DEFAULTS = MpcSettings()


_POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def _policy(name: str) -> PolicyName:
    if name in NO_LONGER:
        raise typer.BadParameter(f"{name} {NO_LONGER[name]}")
    for policy in _POLICIES:
        if policy == name:
            return policy
    raise typer.BadParameter(f"{name!r} is not one of {', '.join(_POLICIES)}.")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on. Other than loopback needs --keys.")] = _GATEWAY.host,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = _GATEWAY.port,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's folder, a GGUF file, a name that `cloister models` lists, or a hub id.",
            show_default="SmolLM2-135M-Instruct",
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What users call the model.", show_default="the model's own name"),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Precision of weights and arithmetic.")] = _ENGINE.dtype,
    weights: Annotated[
        WeightFormat, typer.Option(help="int8: weights take half the memory; slower, and the model differs slightly.")
    ] = _ENGINE.weights,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys file.", show_default="the development key, on loopback only"),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Compute threads; 0: every core.")] = _ENGINE.threads,
    kernels: Annotated[KernelChoice, typer.Option(help="Which kernels compute.")] = _ENGINE.kernels,
    kv_cache_mib: Annotated[int, typer.Option(min=1, help="Memory for the KV cache.")] = _ENGINE.kv_cache_mib,
    cache_disk_bytes: Annotated[
        int,
        typer.Option(
            min=0, help="Of the disk, for computed blocks that the KV cache has no room for, encrypted; 0: none."
        ),
    ] = _ENGINE.cache_disk_bytes,
    cache_host_bytes: Annotated[
        int,
        typer.Option(
            min=0, help="Of the host's memory, for computed blocks that a GPU's KV cache has no room for; 0: none."
        ),
    ] = _ENGINE.cache_host_bytes,
    max_running: Annotated[int, typer.Option(min=1, help="Sequences decoded at once.")] = _ENGINE.max_running,
    chunk_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="Tokens in one step at most: half a second's worth, and few beside other tenants.",
        ),
    ] = _ENGINE.chunk_tokens,
    max_context: Annotated[
        int, typer.Option(min=0, help="Longest prompt plus answer; 0: what the model allows.")
    ] = _ENGINE.max_context,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait for a place.")] = _ENGINE.max_waiting,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds one request may take.")
    ] = _GATEWAY.request_timeout_s,
    max_vaults: Annotated[int, _vaults(min=1, help="Sessions that have a vault at once.")] = _CONTROLLER.max_vaults,
    gpu_in_turns: Annotated[
        bool, _vaults("--gpu-in-turns", help="On a GPU: no MPS, processes take turns; without partitioned.")
    ] = _CONTROLLER.gpu_in_turns,
    attention_processes: Annotated[
        int,
        _vaults(
            min=1,
            max=16,
            help="On a GPU under MPS: processes that hold the keys and values of prompts.",
        ),
    ] = _ENGINE.attention_processes,
    spare_vaults: Annotated[
        int, _vaults(min=0, help="Fresh vaults waiting for new sessions.")
    ] = _CONTROLLER.spare_vaults,
    session_idle: Annotated[
        float, _vaults(min=0.1, help="Seconds a named session waits for its next request.")
    ] = _CONTROLLER.session_idle_s,
    vault_kv_mib: Annotated[
        int, _vaults(min=1, help="Memory for one vault's KV cache, taken as it fills.")
    ] = _ENGINE.vault_kv_mib,
    link_deadline_ms: Annotated[
        int, _vaults(min=1, help="How long a step waits for a vault's answer.")
    ] = _ENGINE.link_deadline_ms,
    prefix_policy: Annotated[
        PolicyName,
        typer.Option(
            parser=_policy,
            metavar=f"[{'|'.join(_POLICIES)}]",
            help="At the level open: who finds whose computed prompts. none: nobody; partition: each tenant its own; "
            "safekv: as partition, since no detector reads prompts at open; global: all find all, and can time what "
            "others wrote. (At the level shared it is safekv, with a detector: all find what it passes in their own "
            "prompts.)",
        ),
    ] = _CONTROLLER.prefix_policy,
    quantise_ttft: Annotated[
        int,
        typer.Option(
            min=0,
            max=60_000,
            metavar="MS",
            help="Where prompts are shared between tenants, let first tokens leave on a grid of so many milliseconds, "
            "and count no shared tokens in usage; 0: off.",
        ),
    ] = _CONTROLLER.quantise_ttft_ms,
    detector: Annotated[
        bool,
        typer.Option(help="Find what of a prompt at the level shared holds nothing private; else nothing is shared."),
    ] = True,
    detector_rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Signed rules of what is private, read again when they change."),
    ] = None,
    detector_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Who must have signed --detector-rules.")
    ] = None,
    judge: Annotated[
        bool,
        typer.Option(help="Where the detector is not sure, ask the model itself while nobody else uses it."),
    ] = _CONTROLLER.judge,
    vault_host: Annotated[
        str | None,
        _vaults(
            metavar="ADDRESS",
            help="Keep all vaults on another machine; see `cloister vault serve`.",
            show_default="on this one",
        ),
    ] = None,
    vault_host_key: Annotated[Path | None, _vaults(metavar="FILE", help="The key shared with that machine.")] = None,
    vault_host_policy: Annotated[
        Path | None,
        _vaults(
            metavar="FILE",
            help="What that machine must prove, in TOML.",
            show_default="this server's release; a TEE if this machine is one",
        ),
    ] = None,
    attester: Annotated[
        AttesterChoice,
        _evidence(
            help="Who speaks for this machine: its firmware (tsm), the vTPM of an Azure VM (azure), software alone, "
            "or the best one there is (auto)."
        ),
    ] = _CONTROLLER.attester,
    gpu_evidence: Annotated[
        GpuEvidenceChoice,
        _evidence(
            help="Whether evidence shows this machine's GPUs: always, or the server does not start (nvml); where they "
            "are in confidential mode (auto); or not."
        ),
    ] = _CONTROLLER.gpu_evidence,
    release: Annotated[
        Path | None,
        _evidence(
            metavar="DIR",
            help="The transparency log that has the release which runs; see `cloister log`.",
            show_default="a development log",
        ),
    ] = None,
    sealed_weights: Annotated[
        Path | None,
        _sealed(
            metavar="FILE", help="Serve a provider's sealed weights once it released their key; see `cloister weights`."
        ),
    ] = None,
    provider_key: Annotated[str | None, _sealed(metavar="KEY", help="Who must have signed them.")] = None,
    mpc: Annotated[
        MpcChoice,
        _mpc(
            help="auto: offered where `make mpc` was done, and three parties are started on this machine "
            "with the first request for it, each taking about 2.9 GB with the default model. local: start them now."
        ),
    ] = "auto",
    mpc_parties: Annotated[
        Path | None,
        _mpc(
            metavar="FILE",
            help="parties.toml: the parties are elsewhere; see `cloister mpc`.",
            show_default="on this machine",
        ),
    ] = None,
    mpc_context: Annotated[int, _mpc(min=32, help="Longest prompt plus answer on shares.")] = _MPC_DEFAULTS.max_context,
    mpc_drafts: Annotated[
        int, _mpc(min=0, max=15, help="Tokens guessed ahead and verified in one pass: pays where messages are slow.")
    ] = _MPC_DEFAULTS.draft_tokens,
    mpc_cache: Annotated[
        MpcCache,
        _mpc(help="full: a token reads the whole prompt. mpcache: a tenth of it; fewer bytes, more time and messages."),
    ] = _MPC_DEFAULTS.cache,
    allow_degraded_sandbox: Annotated[
        bool, _vaults("--allow-degraded-sandbox", help="Serve although this kernel lacks a layer of the sandbox.")
    ] = _CONTROLLER.allow_degraded_sandbox,
) -> None:
    """Serve a model through an OpenAI-compatible API and a chat page.

    Examples:

      cloister serve

      cloister serve --model ./my-model --dtype fp32 --port 9000

      cloister serve --host 0.0.0.0 --keys keys.toml    # see `cloister key new`

      cloister serve --max-vaults 16 --session-idle 60

      cloister serve --sealed-weights model.sealed --provider-key 'example.com/weights+…'

      cloister serve --mpc local    # three parties on this machine: to try it; see docs/mpc.md

      cloister serve --mpc-parties parties.toml
    """
    settings = Settings(
        model=model,
        engine=EngineSettings(
            dtype=dtype,
            weights=weights,
            kernels=kernels,
            threads=threads,
            kv_cache_mib=kv_cache_mib,
            cache_disk_bytes=cache_disk_bytes,
            cache_host_bytes=cache_host_bytes,
            max_running=max_running,
            chunk_tokens=chunk_tokens,
            max_context=max_context,
            max_waiting=max_waiting,
            vault_kv_mib=vault_kv_mib,
            attention_processes=attention_processes,
            link_deadline_ms=link_deadline_ms,
        ),
        controller=ControllerSettings(
            allow_degraded_sandbox=allow_degraded_sandbox,
            gpu_in_turns=gpu_in_turns,
            spare_vaults=spare_vaults,
            max_vaults=max_vaults,
            session_idle_s=session_idle,
            prefix_policy=prefix_policy,
            quantise_ttft_ms=quantise_ttft,
            detector=detector,
            detector_rules=detector_rules.absolute() if detector_rules else None,
            detector_key=detector_key,
            judge=judge,
            vault_host=vault_host,
            vault_host_key=vault_host_key.absolute() if vault_host_key else None,
            vault_host_policy=vault_host_policy.absolute() if vault_host_policy else None,
            attester=attester,
            gpu_evidence=gpu_evidence,
            release=release.absolute() if release else None,
            sealed_weights=sealed_weights.absolute() if sealed_weights else None,
            provider_key=provider_key,
        ),
        gateway=GatewaySettings(
            host=host,
            port=port,
            keys_file=keys,
            served_model_name=served_model_name or None,
            request_timeout_s=request_timeout,
        ),
        mpc=MpcSettings(
            mode=mpc,
            parties=mpc_parties.absolute() if mpc_parties else None,
            max_context=mpc_context,
            draft_tokens=mpc_drafts,
            cache=mpc_cache,
        ),
    )
    _become_controller(settings)


def _become_controller(settings: Settings) -> NoReturn:
    """Finds the model, which may have to be converted; then replaces this program by the controller."""
    begun = monotonic()
    from cloister.attest.attester import find_attester
    from cloister.controller.attested_settings import attested_settings
    from cloister.controller.evidence import find_release
    from cloister.controller.vault_host import check_remote_vaults
    from cloister.gateway.port import reserve_port
    from cloister.keys import load_keys
    from cloister.models.source import find_model
    from cloister.process.entry import become
    from cloister.terminal import error_console
    from cloister_mpc.offer import why_not_mpc

    with error_console().status("Starting…"):
        # What is wrong should not cost the time to load a model.
        load_keys(settings.gateway)
        reserved = reserve_port(settings.gateway)
        check_remote_vaults(settings.controller)
        find_attester(settings.controller.attester)
        release = find_release(settings.controller.release)
        folder = _sealed_model(settings) or find_model(settings.model)
        why_not_mpc(settings, folder)
        attested_settings(settings)
    shown = release.manifest if settings.controller.release else None
    become("cloister.controller", settings, folder.name, folder.path, begun, reserved, shown)


def _sealed_model(settings: Settings) -> ModelFolder | None:
    """The model that a sealed file says it holds, if one is to be served. Nothing is decrypted here."""
    file, provider = settings.controller.sealed_weights, settings.controller.provider_key
    if file is None and provider is None:
        return None
    from cloister.models.source import ModelFolder
    from cloister.sealed_weights.file import WeightsBundle
    from cloister.sealed_weights.header import read_provider_key

    if file is None or provider is None or settings.model is not None:
        raise SetupError(
            "--sealed-weights and --provider-key belong together, and --model is not for them.",
            hint="`cloister weights seal` prints how to serve what it sealed.",
        )
    bundle = WeightsBundle.open(file, read_provider_key(provider))
    bundle.close()
    return ModelFolder(bundle.header.model, file, {})


key = typer.Typer(no_args_is_help=True, help="API keys for those who may use a server.")


@key.command("new")
def new(
    tenant: Annotated[str, typer.Argument(help="Whose key it is: letters, digits, dots, dashes.")],
    trust_group: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Tenants of one group share vaults: they trust each other.", show_default="none"
        ),
    ] = "",
    operator: Annotated[bool, typer.Option("--operator", help="It also opens /metrics.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Add it to this keys file, made if there is none.", show_default="only printed"
        ),
    ] = None,
) -> None:
    """Make a key: prints it once, and the line that admits it or, with --into, adds that to a keys file.

    A running server reads its keys file again at `kill -HUP PID`, with the PID that it prints at its start: that is how
    keys are added and, by deleting their lines, revoked.

    Examples:

      cloister key new alice --into keys.toml

      cloister key new bob --trust-group research

      cloister key new prometheus --operator

      cloister serve --host 0.0.0.0 --keys keys.toml
    """
    from cloister.keys import add_line, key_line, new_key

    secret = new_key()
    line = key_line(secret, tenant, trust_group, operator=operator)
    if into is not None:
        add_line(into, line)
    typer.secho("The key, shown this once; give it to its owner:", dim=True, err=True)
    typer.echo(secret)
    if into is not None:
        typer.secho(
            f"It is admitted by {into}. A running server reads that file again at `kill -HUP PID`, with the PID it "
            "printed at its start (`pgrep -x cl-controller` lists those of all servers).",
            dim=True,
            err=True,
        )
        return
    typer.secho("For the keys file, under [keys]:", dim=True, err=True)
    typer.echo(line)
