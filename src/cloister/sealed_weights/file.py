"""Weights sealed at rest (Petridish §5): "CLOISTER WEIGHTS 1" newline ‖ u32 length ‖ header (signed note) ‖ AES-256-GCM
chunks; nonce: number and whether the last. No byte is used before its chunk is authenticated."""

import base64
import binascii
import hashlib
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta, Struct

from cloister.channel.sealing import TAG_BYTES
from cloister.errors import EvidenceInvalid, ModelCorrupt, ModelNotFound, ModelUnsupported, SetupError
from cloister.files import read_private, write_private, written_whole
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
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")]
    size: Size


class WeightsHeader(Struct, frozen=True, forbid_unknown_fields=True):
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

    def described(self) -> dict[str, Any]:
        files = [file.name for file in self.files]
        return {"model": self.model, "bytes": self.total_bytes, "files": files, "sha256": self.digest.hex()}

    def size_of(self, chunk: int) -> int:
        return min(self.chunk_bytes, self.total_bytes - chunk * self.chunk_bytes)


def read_header(note: str, provider: VerifierKey) -> WeightsHeader:
    """The header; ModelCorrupt unless the provider signed exactly this."""
    try:
        signed = read_note(note)
    except EvidenceInvalid:
        raise ModelCorrupt("The header of the sealed weights is malformed.", hint=_FETCH_AGAIN) from None
    if not provider.signed(signed):
        raise ModelCorrupt(f"The weights are not signed by {provider.name}, or were changed since.", hint=_FETCH_AGAIN)
    if not signed.text.startswith(_TITLE):
        raise ModelCorrupt("What the provider signed is not a header of sealed weights.", hint=_FETCH_AGAIN)
    try:
        header = msgspec.json.decode(signed.text[len(_TITLE) :], type=WeightsHeader)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ModelCorrupt("The header of the sealed weights does not decode.", hint="Update Cloister.") from None
    if header.version != VERSION:
        raise ModelCorrupt(f"The sealed weights have version {header.version}, not {VERSION}.", hint="Update Cloister.")
    if len({file.name for file in header.files}) != len(header.files) or header.total_bytes > 2**48:
        raise ModelCorrupt("The header of the sealed weights names a file twice, or too much.", hint=_FETCH_AGAIN)
    return header


def read_provider_key(text: str) -> VerifierKey:
    try:
        key = VerifierKey.parse(text.strip())
    except EvidenceInvalid:
        hint = "Copy it whole; `cloister weights key` printed it."
        raise SetupError("The provider's key is not `name+hash+base64`.", hint=hint) from None
    if key.algorithm is not Algorithm.ED25519:
        raise SetupError("The provider's key is a witness's, not one that signs weights.")
    return key


_FETCH_AGAIN = "Fetch the file from the provider again, and check the provider's key."
MAGIC = b"CLOISTER WEIGHTS 1\n"
_LENGTH = struct.Struct(">I")
_INFO = b"cloister sealed weights v1\0"
_HINT = "Fetch the file from the provider again."


def seal_weights(
    paths: Sequence[Path],
    model: str,
    out: Path,
    content_key: bytes,
    signing_key: SigningKey,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> WeightsHeader:
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        described = tuple(WeightsFile(path.name, size) for path, size in zip(paths, sizes, strict=True))
        digest = _digest(files)
        salt = secrets.token_bytes(32)
        header = WeightsHeader(VERSION, model, digest, described, key_check(content_key), salt, chunk_bytes)
        text = f"{_TITLE}{msgspec.json.encode(header).decode()}\n"
        if len(text) > MAX_NOTE_CHARACTERS // 2:
            raise ModelUnsupported("The model has too many files to be sealed.", hint="Merge its shards.")
        note = str(Note(text, (signing_key.sign(text),)))
        sealed = stack.enter_context(written_whole(out))
        sealed.write(MAGIC + _LENGTH.pack(len(note.encode())) + note.encode())
        written = hashlib.sha256()
        aead = _aead(content_key, header, note)
        for number, chunk in enumerate(_chunks(files, header)):
            written.update(chunk)
            sealed.write(aead.encrypt(_nonce(number, header), chunk, None))
        if written.digest() != digest:
            raise ModelCorrupt("The model's files changed while they were sealed.", hint="Seal them again.")
    return header


class WeightsBundle:
    """A file of sealed weights whose header the provider signed. Its chunks are not yet verified."""

    def __init__(self, file: BinaryIO, provider: VerifierKey) -> None:
        self._file = file
        start = file.read(len(MAGIC) + _LENGTH.size)
        if not start.startswith(MAGIC) or len(start) < len(MAGIC) + _LENGTH.size:
            raise ModelCorrupt("This is not a file of sealed weights.", hint="`cloister weights seal` makes one.")
        (length,) = _LENGTH.unpack_from(start, len(MAGIC))
        if length > MAX_HEADER_BYTES:
            raise ModelCorrupt(f"The header of sealed weights has at most {MAX_HEADER_BYTES} bytes.", hint=_HINT)
        try:
            self._note = file.read(length).decode()
        except UnicodeDecodeError:
            raise ModelCorrupt("The header of the sealed weights is not text.", hint=_HINT) from None
        self.header = read_header(self._note, provider)
        self._start = len(start) + length
        expected = self._start + self.header.total_bytes + self.header.chunks * TAG_BYTES
        if (size := os.fstat(file.fileno()).st_size) != expected:
            raise ModelCorrupt(f"The sealed weights have {size} bytes, not {expected}.", hint=_HINT)

    @classmethod
    def open(cls, path: Path, provider: VerifierKey) -> Self:
        try:
            file = path.open("rb")
        except OSError as reason:
            raise ModelNotFound(f"The sealed weights {path} cannot be read: {reason.strerror}.") from None
        try:
            return cls(file, provider)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def opens_with(self, content_key: bytes | bytearray) -> bool:
        return secrets.compare_digest(key_check(content_key), self.header.key_check)

    def unpack(self, content_key: bytes | bytearray, create: Callable[[WeightsFile], int]) -> None:
        """`create` gives a file's descriptor. After ModelCorrupt nothing written so far may be used."""
        if not self.opens_with(content_key):
            raise SetupError("The key is not the one these weights are sealed with.", hint="Use the key of this file.")
        chunks = self._opened_chunks(content_key)
        rest = memoryview(b"")
        for file in self.header.files:
            descriptor = create(file)
            try:
                missing = file.size
                while missing:
                    rest = rest or memoryview(next(chunks))
                    taken = os.write(descriptor, rest[:missing])
                    rest, missing = rest[taken:], missing - taken
            finally:
                os.close(descriptor)
        for surplus in chunks:  # an empty model's one chunk; else it only checks the digest
            assert not surplus

    def _opened_chunks(self, content_key: bytes | bytearray) -> Iterator[bytes]:
        aead = _aead(content_key, self.header, self._note)
        digest = hashlib.sha256()
        self._file.seek(self._start)
        for number in range(self.header.chunks):
            sealed = self._file.read(self.header.size_of(number) + TAG_BYTES)
            try:
                chunk = aead.decrypt(_nonce(number, self.header), sealed, None)
            except InvalidTag:
                raise ModelCorrupt(f"Chunk {number} of the sealed weights was altered.", hint=_HINT) from None
            digest.update(chunk)
            yield chunk
        if digest.digest() != self.header.digest:
            raise ModelCorrupt("The weights are not the ones the provider signed.", hint=_HINT)


def _aead(content_key: bytes | bytearray, header: WeightsHeader, note: str) -> AESGCM:
    """Its key ties every chunk to this header."""
    key = bytearray(32)
    info = _INFO + hashlib.sha256(note.encode()).digest()
    HKDF(hashes.SHA256(), 32, salt=header.salt, info=info).derive_into(content_key, key)
    try:
        return AESGCM(key)
    finally:
        key[:] = bytes(len(key))


def _nonce(number: int, header: WeightsHeader) -> bytes:
    return number.to_bytes(11, "big") + bytes([number == header.chunks - 1])


def _digest(files: Sequence[BinaryIO]) -> bytes:
    digest = hashlib.sha256()
    for file in files:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
        file.seek(0)
    return digest.digest()


def _chunks(files: Sequence[BinaryIO], header: WeightsHeader) -> Iterator[bytes]:
    pieces = iter(files)
    file = next(pieces)
    for number in range(header.chunks):
        wanted = header.size_of(number)
        chunk = bytearray()
        while len(chunk) < wanted:
            if piece := file.read(wanted - len(chunk)):
                chunk += piece
            elif (following := next(pieces, None)) is not None:
                file = following
            else:
                raise ModelCorrupt("The model's files changed while they were sealed.", hint="Seal them again.")
        yield bytes(chunk)
