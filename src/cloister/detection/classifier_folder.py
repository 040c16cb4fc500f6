"""The folder of --detector-model: a Hugging Face token classifier in three files, known by one digest. Needs no torch,
so that a bad folder is refused before a model is loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from cloister.errors import SetupError
from cloister.files import needed, read_bounded, sha256_of

MAX_BYTES = {"config.json": 1 << 20, "model.safetensors": 4 << 30, "tokenizer.json": 64 << 20}
_HINT = f"--detector-model takes a folder for token classification that has {', '.join(MAX_BYTES)}."


def refused(folder: Path, why: str) -> SetupError:
    return SetupError(f"{folder} cannot be the detector's model: {why}.", hint=_HINT)


def digest_of_folder(folder: Path) -> bytes:
    """SHA-256 over the names and contents of its files. SetupError if they cannot be a token classifier's."""
    for name, most in MAX_BYTES.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size > most:
            raise refused(folder, f"it has no {name}, or one of more than {most} bytes")
    read_config(folder, (folder / "config.json").read_bytes())
    with needed(f"{folder} cannot be read"):
        return combined({name: sha256_of(folder / name) for name in MAX_BYTES})


def read_files(folder: Path, digest: bytes | None) -> dict[str, bytes]:
    """What is hashed is what is returned. SetupError if they are not those of this digest; None: any."""
    files = {name: read_bounded(folder / name, most, hint=_HINT) for name, most in MAX_BYTES.items()}
    found = combined({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    if digest is not None and found != digest:
        raise SetupError(f"{folder} has changed since this server started.", hint="Start the server again.")
    return files


def read_config(folder: Path, data: bytes) -> tuple[dict[str, Any], list[str]]:
    """Also the labels in the order of the model's outputs; one of them is "O", for what is not private."""
    try:
        config = json.loads(data)
        names = {int(number): str(name) for number, name in config["id2label"].items()}
        labels = [names[number] for number in range(len(names))]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise refused(folder, "its config.json does not name the labels (id2label)") from None
    if labels.count("O") != 1 or len(labels) < 2:
        raise refused(folder, 'its labels need one "O", for what is not private, and others')
    if not any(str(name).endswith("ForTokenClassification") for name in config.get("architectures") or ()):
        raise refused(folder, "its config.json names no architecture for token classification")
    return config, labels


def combined(hashes: dict[str, str]) -> bytes:
    """The digest of files of these names and SHA-256s."""
    return hashlib.sha256("".join(f"{each}  {name}\n" for name, each in sorted(hashes.items())).encode()).digest()
