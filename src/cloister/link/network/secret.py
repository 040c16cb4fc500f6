"""The key that a server and its outpost share: 32 random bytes in a file that nobody else can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from cloister.errors import SetupError

SECRET_BYTES = 32


def write_secret(path: Path) -> None:
    """A fresh key in a new file; an existing file is never overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as reason:
        raise SetupError(f"The key cannot be written to {path}: {reason.strerror}.", hint="Name a new file.") from None
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        file.write(secrets.token_hex(SECRET_BYTES) + "\n")


def read_secret(path: Path) -> bytes:
    """The key in the file. One that others could have read is no secret, and is refused."""
    how = f"Make one with `cloister vault key new {path}`, and copy it to both machines."
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(4 * SECRET_BYTES)
    except OSError as reason:
        raise SetupError(f"The key file {path} cannot be read: {reason.strerror}.", hint=how) from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise SetupError(f"Others may read or own the key file {path}.", hint=f"chmod 600 {path}, or make a new key.")
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise SetupError(f"{path} does not hold a key of {SECRET_BYTES} bytes.", hint=how)
    return secret
