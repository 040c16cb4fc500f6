"""`cloister version`."""

from __future__ import annotations

import typer


def version() -> None:
    """Print the version."""
    from cloister import __version__

    typer.echo(f"cloister {__version__}")
