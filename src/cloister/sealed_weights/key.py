"""The content key of sealed weights, in its owner's file. How it gets to a node is `channel.key_release`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from pathlib import Path

from cloister.errors import SetupError
from cloister.files import read_private, write_private

KEY_BYTES = 32
_PREFIX = b"CLOISTER+WEIGHTS+KEY+"


def new_content_key(path: Path) -> bytes:
    """A fresh key in a new file that its owner alone can read; an existing file is never overwritten."""
    key = secrets.token_bytes(KEY_BYTES)
    write_private(path, _PREFIX + base64.b64encode(key) + b"\n")
    return key


def read_content_key(path: Path) -> bytes:
    """The key in the file. One that others could have read or changed is refused."""
    key = _parsed(read_private(path, 256, "content key"))
    if key is None:
        raise SetupError(f"{path} does not hold a content key.", hint="`cloister weights key` makes one.")
    return key


def _parsed(data: bytes) -> bytes | None:
    if not data.startswith(_PREFIX):
        return None
    try:
        key = base64.b64decode(data.removesuffix(b"\n").removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        return None
    return key if len(key) == KEY_BYTES else None


def key_check(content_key: bytes | bytearray) -> bytes:
    """A name for the key that tells nothing of it."""
    return hashlib.sha256(b"cloister weights key check v1\0" + content_key).digest()[:8]
