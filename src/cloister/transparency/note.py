"""C2SP signed notes: Ed25519 for logs (0x01), cosignatures (0x04). Keys: `[PRIVATE+KEY+]name+hash+base64`."""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import read_private, write_private

MAX_NOTE_CHARACTERS = 65536
MAX_SIGNATURES = 100
KEY_ID_BYTES = 4
_DASH = "— "


@dataclass(frozen=True)
class Signature:
    name: str
    key_id: bytes
    value: bytes

    @property
    def line(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_id + self.value).decode()}\n"


@dataclass(frozen=True)
class Note:
    """A text that ends in a newline, and its signatures. Nothing is verified yet."""

    text: str
    signatures: tuple[Signature, ...]

    def __str__(self) -> str:
        return self.text + "\n" + "".join(signature.line for signature in self.signatures)


def read_note(data: str) -> Note:
    """The note, or EvidenceInvalid. What is read is written back the same, byte for byte."""
    if len(data) > MAX_NOTE_CHARACTERS:
        raise EvidenceInvalid(f"A signed note may have at most {MAX_NOTE_CHARACTERS} characters.")
    if any(character < " " and character != "\n" for character in data):
        raise EvidenceInvalid("A signed note has control characters in it.")
    body, blank, lines = data.rpartition("\n\n")
    if not blank or not body or not lines.endswith("\n"):
        raise EvidenceInvalid("A signed note is a text, an empty line, and signature lines that end in newlines.")
    written = lines[:-1].split("\n")
    if len(written) > MAX_SIGNATURES:
        raise EvidenceInvalid(f"A signed note may have at most {MAX_SIGNATURES} signatures.")
    return Note(_encodable(body) + "\n", tuple(read_signature(_encodable(line)) for line in written))


def read_signature(line: str) -> Signature:
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space or not is_name(name):
        raise EvidenceInvalid("A signature line is not `— name base64`.")
    value = exact_base64(encoded)
    if value is None or len(value) <= KEY_ID_BYTES:
        raise EvidenceInvalid("A signature line's base64 does not decode to a key id and a signature.")
    return Signature(name, value[:KEY_ID_BYTES], value[KEY_ID_BYTES:])


def is_name(name: str) -> bool:
    """Whether keys and logs may be called this: not empty, no spaces, no control characters, no plus."""
    return bool(name) and "+" not in name and not any(each.isspace() or each < " " for each in name)


def exact_base64(text: str) -> bytes | None:
    """The decoded text, if this is the one standard encoding of it: no stray bits or characters."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if base64.b64encode(value).decode() == text else None


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EvidenceInvalid("A signed note is not valid UTF-8.") from None
    return text


MAX_KEY_CHARACTERS = 1024
_PRIVATE = "PRIVATE+KEY+"
_HASH = re.compile(r"[0-9a-f]{8}")
_KEY_BYTES = 32
_SIGNATURE_BYTES = 64
_TIME_BYTES = 8


class Algorithm(IntEnum):
    """What a key does: sign a note as it is, or sign it with the time it was seen (C2SP tlog-cosignature)."""

    ED25519 = 1
    COSIGNATURE = 4


@dataclass(frozen=True)
class VerifierKey:
    name: str
    algorithm: Algorithm
    public: bytes

    @property
    def key_id(self) -> bytes:
        named = self.name.encode() + b"\n" + bytes([self.algorithm]) + self.public
        return hashlib.sha256(named).digest()[:KEY_ID_BYTES]

    def __str__(self) -> str:
        return _written(self.name, self.key_id, self.algorithm, self.public)

    @classmethod
    def parse(cls, text: str) -> Self:
        name, written, algorithm, public = _read(text)
        key = cls(name, algorithm, public)
        if key.key_id.hex() != written:
            raise EvidenceInvalid("A verifier key's hash does not fit its name and key.", hint="Copy it again, whole.")
        return key

    def signatures_on(self, note: Note) -> tuple[Signature, ...]:
        mine = (self.name, self.key_id)
        return tuple(signature for signature in note.signatures if (signature.name, signature.key_id) == mine)

    def signed(self, note: Note) -> bool:
        """Whether this key signed the note. A line of its name that does not verify makes the whole note invalid."""
        lines = self.signatures_on(note)
        return bool(lines) and all(self.verifies(note.text, line) for line in lines)

    def verifies(self, text: str, signature: Signature) -> bool:
        value = signature.value
        message = text.encode()
        if self.algorithm is Algorithm.COSIGNATURE:
            if len(value) != _TIME_BYTES + _SIGNATURE_BYTES:
                return False
            message = _cosigned(text, signed_at(signature))
            value = value[_TIME_BYTES:]
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(value, message)
        except (InvalidSignature, ValueError):
            return False
        return (signature.name, signature.key_id) == (self.name, self.key_id)


@dataclass(frozen=True)
class SigningKey:
    """A name and a private key, which `repr` does not show."""

    name: str
    algorithm: Algorithm
    seed: bytes = field(repr=False)

    @classmethod
    def generate(cls, name: str, algorithm: Algorithm = Algorithm.ED25519) -> Self:
        if not is_name(name) or len(name) > MAX_KEY_CHARACTERS // 2:
            raise EvidenceInvalid("A key's name has no spaces and no plus.", hint="Like: example.com/releases")
        return cls(name, algorithm, Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> Self:
        """The key, or EvidenceInvalid; neither shows the text."""
        if not text.startswith(_PRIVATE):
            raise EvidenceInvalid("This is not a signing key.")
        name, written, algorithm, seed = _read(text.removeprefix(_PRIVATE))
        key = cls(name, algorithm, seed)
        if key.verifier.key_id.hex() != written:
            raise EvidenceInvalid("A signing key's hash does not fit its name and key.")
        return key

    @property
    def verifier(self) -> VerifierKey:
        public = Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()
        return VerifierKey(self.name, self.algorithm, public)

    def private_text(self) -> str:
        return _PRIVATE + _written(self.name, self.verifier.key_id, self.algorithm, self.seed)

    def sign(self, text: str, *, at: datetime | None = None) -> Signature:
        """The line that signs this text. A cosignature says when: `at`, aware."""
        private = Ed25519PrivateKey.from_private_bytes(self.seed)
        if self.algorithm is Algorithm.ED25519:
            return Signature(self.name, self.verifier.key_id, private.sign(text.encode()))
        if at is None or at.tzinfo is None:
            raise ValueError("a cosignature needs an aware time")
        seconds = int(at.timestamp())
        value = seconds.to_bytes(_TIME_BYTES, "big") + private.sign(_cosigned(text, seconds))
        return Signature(self.name, self.verifier.key_id, value)


def new_key_file(path: Path, name: str, algorithm: Algorithm = Algorithm.ED25519) -> SigningKey:
    """A fresh key in a new file; an existing file is never overwritten."""
    key = SigningKey.generate(name, algorithm)
    write_private(path, (key.private_text() + "\n").encode())
    return key


def read_key_file(path: Path, algorithm: Algorithm = Algorithm.ED25519, *, new: str = "") -> SigningKey:
    """One that others could have read or changed is refused. With the name of a `new` key it is made if need be."""
    if new and not path.exists():
        return new_key_file(path, new, algorithm)
    data = read_private(path, 2 * MAX_KEY_CHARACTERS, "signing key")
    try:
        key = SigningKey.parse(data.decode().removesuffix("\n"))
    except (EvidenceInvalid, UnicodeDecodeError):
        hint = "Restore it from where you keep it safe."
        raise SetupError(f"{path} does not hold a signing key.", hint=hint) from None
    if key.algorithm is not algorithm:
        kinds = {Algorithm.ED25519: "a log", Algorithm.COSIGNATURE: "a witness"}
        raise SetupError(f"{path} holds the key of {kinds[key.algorithm]}, not of {kinds[algorithm]}.")
    return key


def signed_at(signature: Signature) -> int:
    """Unix seconds of a cosignature; not to be believed before it is verified."""
    return int.from_bytes(signature.value[:_TIME_BYTES], "big")


def _cosigned(text: str, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()


def _written(name: str, key_id: bytes, algorithm: Algorithm, key: bytes) -> str:
    return f"{name}+{key_id.hex()}+{base64.b64encode(bytes([algorithm]) + key).decode()}"


def _read(text: str) -> tuple[str, str, Algorithm, bytes]:
    name, _, rest = text.partition("+")
    written, _, encoded = rest.partition("+")
    key = exact_base64(encoded)
    if len(text) > MAX_KEY_CHARACTERS or not is_name(name) or not _HASH.fullmatch(written) or not key:
        hint = "Copy the whole line that the command which made it printed, like example.com/releases+957d5196+AUwk…"
        raise EvidenceInvalid("A key of a signed note is not `name+hash+base64`.", hint=hint)
    try:
        name.encode()
        algorithm = Algorithm(key[0])
    except UnicodeEncodeError:
        raise EvidenceInvalid("A key's name is not valid UTF-8.") from None
    except ValueError:
        raise EvidenceInvalid(f"A key has algorithm {key[0]}, which is not known.", hint="Use 1 or 4.") from None
    if len(key) != 1 + _KEY_BYTES:
        raise EvidenceInvalid("A key of a signed note does not have 32 bytes.")
    return name, written, algorithm, key[1:]
