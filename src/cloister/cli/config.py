"""`cloister config`: a file with every option of `cloister serve`; or whether a file of yours can be used."""

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.config_file import name_of, read_options, written_out
from cloister.cli.options import settings_from
from cloister.cli.settings_option import options_of
from cloister.config import Settings

_File = typer.Argument(metavar="FILE", help="Check this file, and print what it sets.", show_default=False)


def config(file: Annotated[Path | None, _File] = None) -> None:
    """Print a configuration file with every option of `cloister serve`, or check one.

    Environment variables go before the file, the command line before both: CLOISTER_SERVE_PORT=9000 is `--port 9000`.

    Examples:
      cloister config > cloister.toml
      cloister config cloister.toml
      cloister serve --config cloister.toml
    """
    options = tuple(options_of(Settings))
    if file is None:
        typer.echo("# Options of `cloister serve`, at their defaults. Use: cloister serve --config FILE")
        for line in written_out(options):
            typer.echo(line)
        return
    chosen = read_options(file, options)
    settings_from(Settings, chosen)
    for option, value in chosen.items():
        typer.echo(f"{name_of(option)} = {value}")
