"""Command line → controller, which the command line starts."""

from msgspec import Struct

from cloister.messages.log_line import LogFormat
from cloister.messages.types import Name, Path


class StartController(Struct, frozen=True, forbid_unknown_fields=True):
    """As JSON in a memory file. `begun`: when the command began; `reserved`: a socket that keeps the port."""

    settings: str
    name: Name
    path: Path
    begun: float
    reserved: int | None = None
    log_format: LogFormat = "text"
