"""A converted model's folder: made from a GGUF file, all or nothing, with a manifest of every file's SHA-256.

The folder appears under its name only when every byte is on the disk. A conversion that was killed leaves a folder of
another name, which the next one removes. Of two at once, one waits and finds the work done.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cloister.errors import ModelCorrupt
from cloister.files import needed, only_one, sha256_of, sync

if TYPE_CHECKING:
    from rich.progress import Progress

FILE_NAME = "cloister-manifest.json"


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a converted model's folder must hold."""

    name: str
    source: str
    source_sha256: str
    dtype: str
    files: dict[str, FileRecord]


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None for a folder that we did not convert."""
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


def convert_gguf(gguf: Path, target: Path, *, name: str, sha256: str) -> None:
    """Make `target` from the GGUF file unless it is there already."""
    room = "Make room there, or name another folder in CLOISTER_CACHE."
    with needed(f"The converted model cannot be written to {target.parent}", room):
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_one(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                _convert(gguf, target, name=name, sha256=sha256)


def _convert(gguf: Path, target: Path, *, name: str, sha256: str) -> None:
    # Loading torch and transformers takes seconds: not when this module is only imported.
    from cloister.models.gguf_file import GgufFile

    for abandoned in target.parent.glob(f".partial-{target.name}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    partial = target.parent / f".partial-{target.name}-{os.getpid()}"
    partial.mkdir()
    try:
        with _progress_bar(f"Converting {name}") as bar:
            source = GgufFile(gguf)
            source.write_description(partial)
            task = bar.add_task(f"Converting {name}", total=1.0)
            source.write_weights(partial / "model.safetensors", lambda part: bar.update(task, completed=part))
        files = {path.name: FileRecord(path.stat().st_size, sha256_of(path)) for path in sorted(partial.iterdir())}
        manifest = Manifest(name, gguf.name, sha256, "bf16", files)
        (partial / FILE_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        for path in (*partial.iterdir(), partial):
            sync(path)
        partial.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _progress_bar(what: str) -> Progress:
    # Not loaded when this module is only imported, to open a model.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what}…")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
