"""Convert a GGUF file into a model folder, all or nothing.

The folder appears under its name only when every byte is on the disk. A conversion that was killed leaves a folder of
another name, which the next one removes; of two at once, one waits and finds the work done.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cloister.files import needed, only_one, sync
from cloister.models.manifest import Manifest, record_files, write_manifest


def convert_gguf(gguf: Path, target: Path, *, name: str, sha256: str) -> None:
    """Make `target` from the GGUF file unless it is there already."""
    room = "Make room there, or name another folder in CLOISTER_CACHE."
    with needed(f"The converted model cannot be written to {target.parent}", room):
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_one(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                _convert(gguf, target, name=name, sha256=sha256)


def _convert(gguf: Path, target: Path, *, name: str, sha256: str) -> None:
    # Loading torch and transformers takes seconds: only who converts pays for it.
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
        files = record_files(partial)
        write_manifest(partial, Manifest(name, gguf.name, sha256, "bf16", files))
        for path in (*partial.iterdir(), partial):
            sync(path)
        partial.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _progress_bar(what: str) -> Progress:
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what}…")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
