"""Files given to `cloister attest check`: evidence in whatever form it is passed around, and policies.

Only reads and unpacks. Every complaint is a SetupError (the file) or an EvidenceInvalid (what is in it).
"""

from __future__ import annotations

import base64
import binascii
import re
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from cloister.errors import SetupError
from cloister.files import read_bounded

MAX_FILE_BYTES = 4 << 20
_HEX_DIGITS = b"0123456789abcdefABCDEF"
_BASE64_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
_Policy = TypeVar("_Policy", bound=msgspec.Struct)


def read_file(path: Path) -> bytes:
    """The file's bytes, if there are not too many."""
    data = read_bounded(path, MAX_FILE_BYTES, hint="Is the name right?")
    if not data.strip():
        raise SetupError(f"{path} is empty.")
    return data


def unpack(data: bytes) -> bytes:
    """Binary and PEM as they are; hex and base64 (also its URL form) decoded."""
    if b"-----BEGIN " in data:
        return data
    packed = b"".join(data.split()) if data.isascii() else data
    digits = packed.removeprefix(b"0x").removeprefix(b"0X")
    if digits and len(digits) % 2 == 0 and not digits.strip(_HEX_DIGITS):
        return bytes.fromhex(digits.decode())
    if packed and not packed.strip(_BASE64_DIGITS):
        letters = packed.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
        try:
            return base64.b64decode(letters + b"=" * (-len(letters) % 4), validate=True)
        except binascii.Error:
            return data
    return data


def read_nonce(text: str) -> bytes:
    """The bytes of --nonce."""
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise SetupError("--nonce takes hexadecimal digits, two for each byte.") from None


def read_time(text: str | None) -> datetime:
    """The moment of --at: ISO 8601 (UTC unless it says otherwise), or Unix seconds; now, if there is none."""
    if text is None:
        return datetime.now(UTC)
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return datetime.fromtimestamp(float(text), UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise SetupError("--at takes a time.", hint="Like 2026-03-01T12:00:00Z, 2026-03-01, or Unix seconds.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_policy_table(path: Path | None, names: Sequence[str], kind: type[_Policy]) -> _Policy:
    """The policy under one of these names; the default, if there is no file."""
    from cloister.attest.policy import Policy

    if path is None:
        return kind()
    try:
        tables = tomllib.loads(read_file(path).decode("utf-8"))
    except (ValueError, RecursionError):
        raise SetupError("The policy is not valid TOML.", hint=f"Look at {path}.") from None
    # A name nobody knows may be a mistyped demand, and what is not demanded is not checked.
    strange = set(tables) - {*Policy.__struct_fields__, "log", "sigstore", "sev-snp", "nvidia"}
    if strange:
        raise SetupError(f"The policy has a part nobody knows: {', '.join(sorted(strange))}.", hint=f"Look at {path}.")
    given = [name for name in names if name in tables]
    if len(given) != 1:
        raise SetupError(f"The policy has no [{names[0]}], or more than one.", hint=f"Look at {path}.")
    try:
        return msgspec.convert(tables[given[0]], kind)
    except (msgspec.ValidationError, ValueError) as wrong:
        raise SetupError(f"[{given[0]}] cannot be used: {wrong}.", hint=f"Look at {path}.") from None
