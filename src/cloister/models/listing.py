"""What models this machine has converted so far, and the default, converted or not.

Reads manifests; opens no weights.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cloister.errors import ModelCorrupt
from cloister.models.manifest import check_files, read_manifest
from cloister.models.source import DEFAULT_NAME, DEFAULT_SHA256, converted_folder, models_folder

State = Literal["ready", "verified", "corrupt", "not converted yet"]


@dataclass(frozen=True)
class KnownModel:
    """One line of the list. A model not converted yet has no bytes, dtype or path."""

    name: str
    default: bool
    state: State
    bytes: int = 0
    dtype: str | None = None
    path: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path) if self.path else None}


def known_models(*, verify: bool) -> list[KnownModel]:
    """The default model first, then every other converted one by name."""
    default = converted_folder(DEFAULT_NAME, DEFAULT_SHA256)
    folders = sorted(path for path in models_folder().glob("[!.]*") if path.is_dir())
    found = [_known(path, default=path == default, verify=verify) for path in folders]
    if default not in folders:
        found.append(KnownModel(DEFAULT_NAME, default=True, state="not converted yet"))
    return sorted(found, key=lambda model: (not model.default, model.name))


def _known(path: Path, *, default: bool, verify: bool) -> KnownModel:
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    try:
        manifest = read_manifest(path)
        if manifest is None:
            return KnownModel(path.name, default, "corrupt", size, path=path)
        if verify:
            check_files(path, manifest)
    except ModelCorrupt:
        return KnownModel(path.name, default, "corrupt", size, path=path)
    return KnownModel(manifest.name, default, "verified" if verify else "ready", size, manifest.dtype, path)
