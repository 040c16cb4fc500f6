"""Kernels that were compiled before. Under a release no compiler runs: a node loads only files that it names."""

from pathlib import Path

from cloister.config import cache_folder
from cloister.process import interpreter


def kernels_folder() -> Path:
    return cache_folder() / "kernels"


def kernels_of_release(pattern: str) -> bytes | None:
    """The kernels among these files of the cache folder that the running release names. None without a release; with
    one that names none of them, this process ends."""
    if (release := interpreter.running()) is None:
        return None
    return release.kernels_among(file.read_bytes() for file in sorted(kernels_folder().glob(pattern)))
