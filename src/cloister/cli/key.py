"""`cloister key`: API keys for tenants. A key is shown once; a server keeps its digest only."""

from pathlib import Path
from typing import Annotated

import typer

from cloister.keys import add_line, key_line, new_key

key = typer.Typer(no_args_is_help=True, help="API keys for the users of a server.")


@key.command("new")
def new(
    tenant: Annotated[str, typer.Argument(help="The key's owner: letters, digits, dots, dashes.")],
    trust_group: Annotated[str, typer.Option(metavar="NAME", help="Tenants of one group may share vaults.")] = "",
    operator: Annotated[bool, typer.Option("--operator", help="It also opens /metrics.")] = False,
    into: Annotated[Path | None, typer.Option(metavar="FILE", help="Add it to this keys file, old or new.")] = None,
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
    secret = new_key()
    line = key_line(secret, tenant, trust_group, operator=operator)
    if into is not None:
        add_line(into, line)
    typer.secho("The key, shown this once; give it to its owner:", dim=True, err=True)
    typer.echo(secret)
    if into is not None:
        again = "A running server reads that file again at `kill -HUP PID`, with the PID it printed at its start"
        every = "(`pgrep -x cl-controller` lists those of all servers)."
        typer.secho(f"It is admitted by {into}. {again} {every}", dim=True, err=True)
        return
    typer.secho("For the keys file, under [keys]:", dim=True, err=True)
    typer.echo(line)
