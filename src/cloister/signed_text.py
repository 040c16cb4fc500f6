"""An operator's file under Ed25519 (a signed note), read again when it changes; a bad one leaves the last in force."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from cloister.errors import CloisterError, SetupError
from cloister.files import read_bounded
from cloister.transparency.note import Note, SigningKey, VerifierKey, read_note

log = logging.getLogger(__name__)

_SIGNATURES_BYTES = 4096
Check = Callable[[str], object]  # raises CloisterError if a text is not well formed


class SignedText:
    """`text` is in force. The first reading must succeed; `trouble` says why a later one failed."""

    def __init__(self, path: Path, key: VerifierKey, check: Check, *, most: int, hint: str) -> None:
        self._path, self._key, self._check, self._most, self._hint = path, key, check, most, hint
        self._seen = self._stamp()
        self.text = self._read()
        self.trouble: CloisterError | None = None

    def reload(self) -> bool:
        """Whether the file has a new text. A bad file is logged once, and the old text stays."""
        if (stamp := self._stamp()) == self._seen:
            return False
        self._seen = stamp
        try:
            text = self._read()
        except CloisterError as wrong:
            self.trouble = wrong
            log.error("A signed file was not taken, what it said before stays in force: %s", wrong)
            return False
        self.trouble = None
        changed, self.text = text != self.text, text
        return changed

    async def watch(self, every_s: float, then: Callable[[str], None]) -> NoReturn:
        """`then` gets each new text."""
        while True:
            await asyncio.sleep(every_s)
            if self.reload():
                then(self.text)

    def _read(self) -> str:
        return read_signed(self._path, self._key, self._check, most=self._most, hint=self._hint)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def read_signed(path: Path, key: VerifierKey, check: Check, *, most: int, hint: str) -> str:
    """SetupError, with the hint, if the signature is not the key's."""
    data = read_bounded(path, most + _SIGNATURES_BYTES)
    try:
        note = read_note(data.decode())
        signed = key.signed(note)
    except (CloisterError, UnicodeDecodeError):
        signed = False
    if not signed:
        raise SetupError(f"{path} is not signed by {key.name}.", hint=hint)
    check(note.text)
    return note.text


def signed_text(text: str, key: SigningKey, check: Check) -> str:
    text = text if text.endswith("\n") else text + "\n"
    check(text)
    return str(Note(text, (key.sign(text),)))
