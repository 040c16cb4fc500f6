"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from cloister.config import DEVELOPMENT_KEY

DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option(help="Where the server listens; `/v1` may be left out.", show_default=DEFAULT_URL)]
ApiKey = Annotated[
    str,
    typer.Option(
        envvar="CLOISTER_API_KEY",
        help="API key. Better in the environment: other users of this machine can see a process's arguments.",
        show_default="the development key",
    ),
]
DEFAULT_KEY = DEVELOPMENT_KEY
