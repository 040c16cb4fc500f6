"""`cloister vault`: vaults on a machine of their own, and the key that binds a server to them."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated, NoReturn

import typer

from cloister.config import (
    AttesterChoice,
    Dtype,
    EngineSettings,
    GpuEvidenceChoice,
    KernelChoice,
    VaultHostSettings,
    WeightFormat,
)

vault = typer.Typer(no_args_is_help=True, help="Vaults on another machine, and the key to them.")
key = typer.Typer(no_args_is_help=True, help="The key that a server and its vault host share.")
vault.add_typer(key, name="key")

_ENGINE = EngineSettings()
_MAX_VAULTS = 80


@key.command("new")
def new(file: Annotated[Path, typer.Argument(help="Where to write it; must not exist yet.")]) -> None:
    """Make a key. Both sides need the same file, and nobody else may have it.

    Example:

      cloister vault key new vault-host.key
    """
    from cloister.link.network.credentials import write_secret

    write_secret(file)
    typer.echo(f"Key written to {file}. Copy it to the other machine over a channel you trust.", err=True)


@vault.command("serve")
def serve(
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="HOST:PORT, [IPv6]:PORT or vsock:any:PORT.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The shared key; see `cloister vault key new`.")],
    model: Annotated[
        str | None,
        typer.Option(help="The server's model: folder, GGUF file or hub id.", show_default="the default model"),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Precision of weights and arithmetic; as the server's.")] = _ENGINE.dtype,
    weights: Annotated[WeightFormat, typer.Option(help="As the server's.")] = _ENGINE.weights,
    threads: Annotated[int, typer.Option(min=0, help="Compute threads; 0: every core.")] = _ENGINE.threads,
    kernels: Annotated[KernelChoice, typer.Option(help="Which kernels compute.")] = _ENGINE.kernels,
    chunk_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens in one piece of work at most.")
    ] = _ENGINE.chunk_tokens,
    max_context: Annotated[
        int, typer.Option(min=0, help="Longest prompt plus answer; 0: what the model allows.")
    ] = _ENGINE.max_context,
    max_vaults: Annotated[int, typer.Option(min=1, help="Vaults at once, spare ones included.")] = _MAX_VAULTS,
    vault_kv_mib: Annotated[
        int, typer.Option(min=1, help="Memory for one vault's KV cache, taken as it fills.")
    ] = _ENGINE.vault_kv_mib,
    allow_degraded_sandbox: Annotated[
        bool, typer.Option("--allow-degraded-sandbox", help="Serve although this kernel lacks a layer of the sandbox.")
    ] = False,
    attester: Annotated[
        AttesterChoice,
        typer.Option(help="Who speaks for this machine: its firmware (tsm), an Azure VM's vTPM, or software alone."),
    ] = "auto",
    gpu_evidence: Annotated[
        GpuEvidenceChoice, typer.Option(help="Whether evidence shows this machine's GPUs; see `cloister serve`.")
    ] = "auto",
    release: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The log that has the release which runs.", show_default="none"),
    ] = None,
) -> None:
    """Keep vaults on this machine for a server elsewhere: a vault host.

    Examples:

      cloister vault key new vault-host.key

      cloister vault serve --listen 10.0.0.2:7000 --key vault-host.key

      cloister serve --vault-host 10.0.0.2:7000 --vault-host-key vault-host.key    # on the other machine
    """
    settings = VaultHostSettings(
        listen=listen,
        key_file=key,
        max_vaults=max_vaults,
        allow_degraded_sandbox=allow_degraded_sandbox,
        attester=attester,
        gpu_evidence=gpu_evidence,
        release=release.absolute() if release else None,
        engine=EngineSettings(
            dtype=dtype,
            weights=weights,
            kernels=kernels,
            threads=threads,
            chunk_tokens=chunk_tokens,
            max_context=max_context,
            vault_kv_mib=vault_kv_mib,
        ),
    )
    _become_vault_host(settings, model)


def _become_vault_host(settings: VaultHostSettings, model: str | None) -> NoReturn:
    """Like `serve`: finds the model, which may have to be converted; then replaces this program by the vault host."""
    begun = monotonic()
    from cloister.attest.attester import find_attester
    from cloister.controller.evidence import find_release
    from cloister.controller.external_level import installed_packages
    from cloister.link.network.address import Address
    from cloister.link.network.credentials import read_secret
    from cloister.models.source import find_model
    from cloister.process.entry import become
    from cloister.terminal import error_console

    Address.parse(settings.listen)
    read_secret(settings.key_file)  # a wrong address or key should not cost the time to load a model
    find_attester(settings.attester)
    release = find_release(settings.release, installed_packages())
    with error_console().status("Starting…"):
        folder = find_model(model)
    settings = settings.model_copy(update={"key_file": settings.key_file.absolute()})
    shown = release.manifest if settings.release else None
    become("cloister.vault_host", settings, folder.name, folder.path, begun, release=shown)
