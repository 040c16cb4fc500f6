"""Options that benchmarks share."""

from __future__ import annotations

from typing import Annotated

import typer

from cloister.cli.options import DEFAULT_URL
from cloister.errors import SetupError

Url = Annotated[str, typer.Option(help="Where the server listens; `/v1` may be left out.", show_default=DEFAULT_URL)]
ApiKey = Annotated[
    str,
    typer.Option(
        envvar="CLOISTER_API_KEY",
        help="API key. Better in the environment: other users of this machine can see a process's arguments.",
        show_default="the development key",
    ),
]
SamplingModel = Annotated[
    str | None,
    typer.Option(help="Model of this machine that samples, as for `serve`.", show_default="SmolLM2-135M-Instruct"),
]


def numbers(text: str) -> list[int]:
    """The value of --users."""
    try:
        counts = [int(each) for each in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise SetupError("--users takes numbers from 1, with commas between them.", hint="Like: --users 1,8,32")
    return counts
