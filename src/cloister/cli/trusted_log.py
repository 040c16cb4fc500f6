"""What `cloister release` and `cloister log` share: which log and witnesses are trusted, and how files are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel

from cloister.config import at_least, option
from cloister.errors import EvidenceInvalid
from cloister.files import read_bounded

if TYPE_CHECKING:
    from cloister.transparency.checkpoint import Checkpoint, ReleaseTrust


class TrustedLog(BaseModel):
    log_key: list[str] | None = option(None, "A log to trust; may be repeated.", metavar="VKEY")
    witness: list[str] | None = option(None, "A witness to trust; may be repeated.", metavar="VKEY")
    quorum: int | None = option(
        None, "How many witnesses must have signed.", bounds=at_least(0), show_default="all of them"
    )
    seen: Path | None = option(None, "A checkpoint of the log seen earlier.", metavar="FILE")
    as_json: bool = option(False, "Print JSON instead of text.", name="json")

    def trust(self) -> ReleaseTrust:
        from cloister.transparency.checkpoint import ReleaseTrust

        return ReleaseTrust(tuple(self.log_key or ()), tuple(self.witness or ()), self.quorum)

    def earlier(self) -> Checkpoint | None:
        from cloister.transparency.checkpoint import read_checkpoint

        return None if self.seen is None else read_checkpoint(text_of(self.seen)).checkpoint


def text_of(file: Path) -> str:
    try:
        return read_file(file, 1 << 20).decode()
    except UnicodeDecodeError:
        raise EvidenceInvalid(f"{file} is not text.") from None


def read_file(file: Path, limit: int) -> bytes:
    return read_bounded(file, limit, too_large=EvidenceInvalid)


def print_result(as_json: bool, found: dict[str, Any], line: str, note: str = "") -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    if note:
        typer.secho(note, dim=True, err=True)
    typer.echo(line)
