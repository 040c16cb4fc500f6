"""The one console on standard error: what moves on a terminal at the same time is shown together, not by turns."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)
