"""C2SP signed notes: a text, and lines that sign it. This module reads and writes them; `keys` signs and verifies."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from cloister.errors import EvidenceInvalid

MAX_NOTE_CHARACTERS = 65536
MAX_SIGNATURES = 100
KEY_ID_BYTES = 4
_DASH = "— "


@dataclass(frozen=True)
class Signature:
    """One line under a note: who signed (a name and four bytes of key id), and the signature, format by algorithm."""

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
    """One signature line without its newline."""
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
    """What the text encodes if it is the one standard encoding of it: stray bits and characters are not overlooked."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if base64.b64encode(value).decode() == text else None


def _encodable(text: str) -> str:
    """The text, if it is valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EvidenceInvalid("A signed note is not valid UTF-8.") from None
    return text
