"""A signing key in a file that its owner alone can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.durable import make_folder, write_whole
from cloister.transparency.keys import MAX_KEY_CHARACTERS, Algorithm, SigningKey


def new_key_file(path: Path, name: str, algorithm: Algorithm = Algorithm.ED25519) -> SigningKey:
    """A fresh key in a new file; an existing file is never overwritten."""
    key = SigningKey.generate(name, algorithm)
    try:
        make_folder(path.parent)
        write_whole(path, (key.private_text() + "\n").encode(), mode=0o600, fresh=True)
    except OSError as reason:
        raise SetupError(f"The key cannot be written to {path}: {reason.strerror}.", hint="Name a new file.") from None
    return key


def read_key_file(path: Path, algorithm: Algorithm) -> SigningKey:
    """The key in the file. One that others could have read or changed is refused."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(2 * MAX_KEY_CHARACTERS)
    except OSError as reason:
        raise SetupError(f"The signing key {path} cannot be read: {reason.strerror}.") from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise SetupError(
            f"Others may read or own the signing key {path}.", hint=f"chmod 600 {path}, or make a new key."
        )
    try:
        key = SigningKey.parse(data.decode().removesuffix("\n"))
    except (EvidenceInvalid, UnicodeDecodeError):
        raise SetupError(
            f"{path} does not hold a signing key.", hint="Restore it from where you keep it safe."
        ) from None
    if key.algorithm is not algorithm:
        kinds = {Algorithm.ED25519: "a log", Algorithm.COSIGNATURE: "a witness"}
        raise SetupError(f"{path} holds the key of {kinds[key.algorithm]}, not of {kinds[algorithm]}.")
    return key
