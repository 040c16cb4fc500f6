"""An operator's rule file: TOML under an Ed25519 signature (a signed note), read again when it changes.
If the file is missing, broken, or not signed by the operator's key, the old rules stay in force."""

from __future__ import annotations

import logging
from pathlib import Path

from cloister.detection.rules import read_rules
from cloister.errors import CloisterError, SetupError
from cloister.files import read_bounded
from cloister.messages.controller_detector import MAX_RULES_BYTES
from cloister.transparency.note import Note, SigningKey, VerifierKey, read_note

log = logging.getLogger(__name__)

_SIGNATURES_BYTES = 4096


class SignedRules:
    """`text` is the TOML in force. The first reading must succeed; `trouble` says why a later one failed."""

    def __init__(self, path: Path, key: VerifierKey) -> None:
        self._path = path
        self._key = key
        self._seen = self._stamp()
        self.text = read_signed(path, key)
        self.trouble: CloisterError | None = None

    def reload(self) -> bool:
        """Whether the file has new rules. A bad file is logged once, and the old rules stay."""
        if (stamp := self._stamp()) == self._seen:
            return False
        self._seen = stamp
        try:
            text = read_signed(self._path, self._key)
        except CloisterError as wrong:
            self.trouble = wrong
            log.error("The rule file was not taken, the rules before stay in force: %s", wrong)
            return False
        self.trouble = None
        changed, self.text = text != self.text, text
        return changed

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def read_signed(path: Path, key: VerifierKey) -> str:
    """SetupError if the signature is not the key's or the rules are not well formed."""
    data = read_bounded(path, MAX_RULES_BYTES + _SIGNATURES_BYTES)
    try:
        note = read_note(data.decode())
        signed = key.signed(note)
    except (CloisterError, UnicodeDecodeError):
        signed = False
    if not signed:
        raise SetupError(
            f"{path} is not signed by {key.name}.", hint="Sign it with `cloister cache sign FILE --key KEYFILE`."
        )
    read_rules(note.text)
    return note.text


def sign_rules(text: str, key: SigningKey) -> str:
    """RuleBroken if the rules are not well formed."""
    text = text if text.endswith("\n") else text + "\n"
    read_rules(text)
    return str(Note(text, (key.sign(text),)))
