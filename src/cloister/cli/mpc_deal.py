"""`cloister mpc deal`: a provider deals its model to parties that run already, wherever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def deal(
    config: Annotated[Path, typer.Option(metavar="FILE", help="The parties' settings; the same for all.")],
    model: Annotated[
        str | None, typer.Option(help="Folder, GGUF file or hub id.", show_default="the default model")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The provider's key; its certificate lies beside it.", show_default="keys/provider.key"
        ),
    ] = None,
) -> None:
    """Deal a model's weights to the parties as secret shares. What they hold already is not dealt again.

    No party learns the weights; two that put their shares together have them. Each keeps about 16 bytes per weight.

    Example:

      cloister mpc deal --config parties.toml --model ./my-model
    """
    import asyncio

    from rich.console import Console

    from cloister.errors import SetupError
    from cloister.models.source import find_model
    from cloister.mpc.certificates import Credentials
    from cloister.mpc.config import read_config
    from cloister.mpc.serve_weights import serve_weights

    settings = read_config(config)
    own = key or config.parent / "keys" / "provider.key"
    if not own.is_file():
        raise SetupError(f"There is no provider's key {own}.", hint="`cloister mpc keys` makes one; --key names it.")
    console = Console(stderr=True, highlight=False)
    found = find_model(model)
    asyncio.run(serve_weights(settings, Credentials(own.with_suffix(".crt"), own), found, console))
    console.print(f"{len(settings.party)} parties serve {found.name}.", soft_wrap=True)
