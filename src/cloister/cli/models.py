"""`cloister models`: which models are here, and whether their bytes are still what they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cloister.models.source import KnownModel


def models(
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte and compare it with what was recorded.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the models converted on this machine."""
    from cloister.models.source import known_models

    found = known_models(verify=verify)
    if as_json:
        import json

        typer.echo(json.dumps({"models": [model.as_dict() for model in found]}, indent=2))
    else:
        _print_table(found)
    if any(model.state == "corrupt" for model in found):
        typer.echo("Remove the folder of a corrupt model: it is converted again at the next start.", err=True)
        raise typer.Exit(1)


def _print_table(found: list[KnownModel]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("Model", "Size", "Type", "State", "Path", box=None, pad_edge=False)
    for model in found:
        size = f"{model.bytes / 1e6:.0f} MB" if model.bytes else "–"
        name = f"{model.name} (default)" if model.default else model.name
        table.add_row(name, size, model.dtype or "–", model.state, str(model.path) if model.path else "–")
    # A path must stay whole to be copied, also where the terminal is narrow or there is none.
    console = Console()
    console.width = max(console.width, console.measure(table, options=console.options.update(width=10_000)).maximum)
    console.print(table)
