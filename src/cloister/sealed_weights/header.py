"""The public header of a file of sealed weights, signed by the provider (a C2SP signed note around JSON) over the
plaintext's digest too, and the content key in its owner's file."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.errors import EvidenceInvalid, ModelCorrupt, ModelUnsupported, SetupError
from cloister.files import read_private, write_private
from cloister.transparency.note import MAX_NOTE_CHARACTERS, Algorithm, Note, SigningKey, VerifierKey, read_note

KEY_BYTES = 32
_PREFIX = b"CLOISTER+WEIGHTS+KEY+"


def new_content_key(path: Path) -> bytes:
    """A fresh key in a new file that its owner alone can read; an existing file is never overwritten."""
    key = secrets.token_bytes(KEY_BYTES)
    write_private(path, _PREFIX + base64.b64encode(key) + b"\n")
    return key


def read_content_key(path: Path) -> bytes:
    """The key in the file. One that others could have read or changed is refused."""
    data = read_private(path, 256, "content key")
    try:
        key = base64.b64decode(data.removesuffix(b"\n").removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not data.startswith(_PREFIX) or len(key) != KEY_BYTES:
        raise SetupError(f"{path} does not hold a content key.", hint="`cloister weights key` makes one.")
    return key


def key_check(content_key: bytes | bytearray) -> bytes:
    """A name for the key that does not reveal it."""
    return hashlib.sha256(b"cloister weights key check v1\0" + content_key).digest()[:8]


VERSION = 1
MAX_HEADER_BYTES = 4 * MAX_NOTE_CHARACTERS
CHUNK_BYTES = 1 << 20
_TITLE = "cloister sealed weights v1\n"

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Size = Annotated[int, Meta(ge=0, le=2**48)]


class WeightsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the model's folder. Its bytes follow those of the file before it."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")]
    size: Size


class WeightsHeader(Struct, frozen=True, forbid_unknown_fields=True):
    """All of it is public, and all of it is signed."""

    version: int
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    digest: Digest  # SHA-256 of all files' bytes, one after the other.
    files: Annotated[tuple[WeightsFile, ...], Meta(min_length=1, max_length=1024)]
    key_check: Annotated[bytes, Meta(min_length=8, max_length=8)]
    salt: Digest  # Derives this file's own key from the content key, which may seal several files.
    chunk_bytes: Annotated[int, Meta(ge=4096, le=1 << 24)] = CHUNK_BYTES

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def chunks(self) -> int:
        """At least one; the last is marked as such."""
        return max(1, -(-self.total_bytes // self.chunk_bytes))


def sign_header(header: WeightsHeader, key: SigningKey) -> str:
    text = f"{_TITLE}{msgspec.json.encode(header).decode()}\n"
    if len(text) > MAX_NOTE_CHARACTERS // 2:
        raise ModelUnsupported("The model has too many files to be sealed.", hint="Merge its shards.")
    return str(Note(text, (key.sign(text),)))


def read_header(note: str, provider: VerifierKey) -> WeightsHeader:
    """The header; ModelCorrupt unless the provider signed exactly this."""
    try:
        signed = read_note(note)
    except EvidenceInvalid:
        raise ModelCorrupt("The header of the sealed weights is malformed.", hint=_HINT) from None
    if not provider.signed(signed):
        raise ModelCorrupt(f"The weights are not signed by {provider.name}, or were changed since.", hint=_HINT)
    if not signed.text.startswith(_TITLE):
        raise ModelCorrupt("What the provider signed is not a header of sealed weights.", hint=_HINT)
    try:
        header = msgspec.json.decode(signed.text[len(_TITLE) :], type=WeightsHeader)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ModelCorrupt("The header of the sealed weights does not decode.", hint="Update Cloister.") from None
    if header.version != VERSION:
        raise ModelCorrupt(f"The sealed weights have version {header.version}, not {VERSION}.", hint="Update Cloister.")
    if len({file.name for file in header.files}) != len(header.files) or header.total_bytes > 2**48:
        raise ModelCorrupt("The header of the sealed weights names a file twice, or too much.", hint=_HINT)
    return header


def read_provider_key(text: str) -> VerifierKey:
    try:
        key = VerifierKey.parse(text.strip())
    except EvidenceInvalid:
        raise SetupError(
            "The provider's key is not `name+hash+base64`.", hint="Copy it whole; `cloister weights key` printed it."
        ) from None
    if key.algorithm is not Algorithm.ED25519:
        raise SetupError("The provider's key is a witness's, not one that signs weights.")
    return key


_HINT = "Fetch the file from the provider again, and check the provider's key."
