"""`cloister key`: API keys for tenants. A key is shown once and kept nowhere; the server knows only its digest."""

from __future__ import annotations

from typing import Annotated

import typer

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
) -> None:
    """Make a key: prints it once, and the line that admits it.

    Examples:

      cloister key new alice

      cloister key new bob --trust-group research

      cloister serve --host 0.0.0.0 --keys keys.toml    # with that line in its keys table
    """
    from cloister.gateway.keys import key_line, new_key

    secret = new_key()
    line = key_line(secret, tenant, trust_group)
    typer.secho("The key, shown this once; give it to its owner:", dim=True, err=True)
    typer.echo(secret)
    typer.secho("For the keys file, under [keys]:", dim=True, err=True)
    typer.echo(line)
