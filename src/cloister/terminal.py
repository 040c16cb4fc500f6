"""The one console on standard error, so that several progress displays do not overwrite each other."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def error_console() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False)
