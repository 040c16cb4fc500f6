"""The note that lies in a converted model's folder: where it came from, and the SHA-256 of every file in it.

Knows files and hashes; knows nothing of what a model is.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cloister.errors import ModelCorrupt
from cloister.files import sha256_of

FILE_NAME = "cloister-manifest.json"


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one file must be."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a converted model's folder must hold."""

    name: str
    source: str
    source_sha256: str
    dtype: str
    files: dict[str, FileRecord]


def record_files(folder: Path) -> dict[str, FileRecord]:
    """Every file of the folder, as it is now."""
    return {
        path.name: FileRecord(bytes=path.stat().st_size, sha256=sha256_of(path)) for path in sorted(folder.iterdir())
    }


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / FILE_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None where there is none: a folder that we did not convert."""
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as wrong:
        raise ModelCorrupt(f"The manifest of the model in {folder} does not decode.", hint=_again(folder)) from wrong


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise ModelCorrupt unless every file is byte for byte what was recorded."""
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ModelCorrupt(f"The converted model lacks {path}.", hint=_again(folder))
        if path.stat().st_size != record.bytes or sha256_of(path) != record.sha256:
            raise ModelCorrupt(f"{path} has changed since it was converted.", hint=_again(folder))


def _again(folder: Path) -> str:
    return f"Remove the folder {folder}: the model is converted again at the next start."
