"""`cloister key`: API keys for tenants. A key is shown once; a server keeps its digest only."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from cloister.errors import InvalidRequest
from cloister.keys import add_line, key_line, new_key
from cloister.messages.controller_frontend import MOST_A_DAY

key = typer.Typer(no_args_is_help=True, help="API keys for the users of a server.")


_SHARED = "a day (UTC) for all of the tenant's keys together; 0: no limit."


@key.command("new")
def new(
    tenant: Annotated[str, typer.Argument(help="The key's owner: letters, digits, dots, dashes.")],
    trust_group: Annotated[str, typer.Option(metavar="NAME", help="Tenants of one group may share vaults.")] = "",
    operator: Annotated[bool, typer.Option("--operator", help="It also opens /metrics.")] = False,
    expires: Annotated[
        str | None, typer.Option(metavar="DAY", help="The last day it counts (UTC): 2027-01-31.")
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, max=36500, help="For how many days from today it counts.")] = None,
    tokens_a_day: Annotated[int | None, typer.Option(min=0, max=MOST_A_DAY, help=f"Tokens {_SHARED}")] = None,
    requests_a_day: Annotated[int | None, typer.Option(min=0, max=MOST_A_DAY, help=f"Requests {_SHARED}")] = None,
    into: Annotated[Path | None, typer.Option(metavar="FILE", help="Add it to this keys file, old or new.")] = None,
) -> None:
    """Make a key: prints it once, and the line that admits it or, with --into, adds that to a keys file.

    A running server reads its keys file again at `kill -HUP PID`, with the PID that it prints at its start: that is how
    keys are added and, by deleting their lines, revoked.

    Examples:
      cloister key new alice --into keys.toml
      cloister key new bob --trust-group research
      cloister key new prometheus --operator
      cloister key new carol --days 90 --tokens-a-day 200000 --into keys.toml
      cloister serve --host 0.0.0.0 --keys keys.toml
    """
    secret = new_key()
    until = _last_day(expires, days)
    quota = {"tokens_a_day": tokens_a_day, "requests_a_day": requests_a_day}
    line = key_line(secret, tenant, trust_group, operator=operator, expires=until, **quota)
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


def _last_day(expires: str | None, days: int | None) -> date | None:
    if expires is not None and days is not None:
        raise InvalidRequest("--expires and --days both say when the key ends.", hint="Give one of them.")
    today = datetime.now(UTC).date()
    if days is not None:
        return today + timedelta(days=days)
    try:
        last = None if expires is None else date.fromisoformat(expires)
    except ValueError:
        raise InvalidRequest("--expires takes a day.", hint="Like: 2027-01-31") from None
    if last is not None and last < today:
        raise InvalidRequest("--expires is in the past.", hint=f"Today is {today} in UTC.")
    return last
