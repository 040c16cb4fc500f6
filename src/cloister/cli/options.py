"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from cloister.config import DEVELOPMENT_KEY
from cloister.errors import SetupError

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


def numbers(text: str) -> list[int]:
    """What --users says."""
    try:
        counts = [int(each) for each in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise SetupError("--users takes numbers from 1, with commas between them.", hint="Like: --users 1,8,32")
    return counts
