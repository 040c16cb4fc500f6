"""`cloister issuer`: gives tenants anonymous tokens; knows how many each took, and none of them."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import typer
from pydantic import BaseModel

from cloister.cli.options import settings_command
from cloister.config import GatewaySettings, data_folder, option
from cloister.errors import SetupError
from cloister.messages.log_line import LogFormat


class IssuerOptions(BaseModel):
    keys: Path | None = option(None, "Keys file of its tenants.", show_default="the development key, on loopback")
    name: str = option(
        "issuer", "The issuer's name, which its tokens carry.", metavar="NAME", min_length=1, max_length=255
    )
    url: str = option("", "Where users reach it.", show_default="the address it listens on")
    folder: Path | None = option(None, "Its keys, and what it granted.", metavar="DIR", show_default="the data folder")
    per_day: int = option(1000, "Tokens for one tenant on one day (UTC).", ge=1)
    period_days: int = option(7, "Days until the next key; a token counts for one to two periods.", ge=1, le=365)
    log_format: LogFormat = option("text", "Log lines for people, or one JSON object each.")
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8010, "Port to listen on; 0: any free port.", ge=0, le=65535)


@settings_command(IssuerOptions)
def issuer(options: IssuerOptions) -> None:
    """Give each tenant a number of anonymous tokens a day. A node takes a token in place of an API key, once.

    Tokens are blind signatures (RFC 9474, RFC 9578 type 2): the issuer cannot tell which token it gave to which tenant.

    Examples:
      cloister key new alice --into keys.toml
      cloister issuer --keys keys.toml --per-day 1000
      cloister cloud make --issuer http://127.0.0.1:8010 --node one=https://one.example --out cloud.json
    """
    from cloister.access.batches import DIRECTORY, TOKENS
    from cloister.access.issuer_app import issuer_app
    from cloister.access.issuing import DAY_S, Issuer
    from cloister.gateway.server import serve
    from cloister.keys import load_keys
    from cloister.process.log_lines import begin_logging

    begin_logging("issuer", options.log_format)
    settings = GatewaySettings(host=options.host, port=options.port, keys_file=options.keys)
    keys = load_keys(settings)
    if options.url and urlsplit(options.url).scheme not in ("http", "https"):
        raise SetupError("--url is an address that begins with https:// or http://.")
    folder = options.folder or data_folder() / "issuer"
    period = options.period_days * DAY_S
    made = Issuer(folder, options.name, TOKENS, per_day=options.per_day, period_s=period)
    _ = made.keys  # made now: a folder or key that cannot be used should stop the start

    def ready(url: str) -> None:
        typer.echo(f"Issuer    {options.name}, {options.per_day} tokens a day for each tenant")
        typer.echo(f"Keys      {options.url or url}{DIRECTORY}")
        typer.echo("Ctrl-C ends it.")

    asyncio.run(serve(issuer_app(made, keys), settings, ready))
