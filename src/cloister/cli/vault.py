"""`cloister vault`: vaults on another machine than the server's, and the key that both machines share."""

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from cloister.cli.options import settings_command
from cloister.config import VaultHostSettings

vault = typer.Typer(no_args_is_help=True, help="Vaults on another machine, and the key to them.")
key = typer.Typer(no_args_is_help=True, help="The key that a server and its vault host share.")
vault.add_typer(key, name="key")


@key.command("new")
def new(file: Annotated[Path, typer.Argument(help="Where to write it; must not exist yet.")]) -> None:
    """Make a key. Both machines need the same file; keep it from everyone else.

    Example:
      cloister vault key new vault-host.key
    """
    from cloister.link.network.credentials import write_secret

    write_secret(file)
    typer.echo(f"Key written to {file}. Copy it to the other machine over a channel you trust.", err=True)


@vault.command("serve")
@settings_command(VaultHostSettings)
def serve(settings: VaultHostSettings) -> None:
    """Keep vaults on this machine for a server elsewhere: a vault host.

    --model, --dtype and --weights must be the server's.

    Examples:
      cloister vault key new vault-host.key
      cloister vault serve --listen 10.0.0.2:7000 --key vault-host.key
      cloister serve --vault-host 10.0.0.2:7000 --vault-host-key vault-host.key    # on the other machine
    """
    begun = monotonic()
    from cloister.attest.machine import find_attester
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
        folder = find_model(settings.model)
    shown = release.manifest if settings.release else None
    become(
        "cloister.vault_host", settings, folder.name, folder.path, begun, release=shown, log_format=settings.log_format
    )
