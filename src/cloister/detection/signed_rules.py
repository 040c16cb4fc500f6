"""An operator's rule file: TOML under a signature."""

from functools import partial
from pathlib import Path

from cloister import signed_text
from cloister.detection.rules import read_rules
from cloister.messages.controller_detector import MAX_RULES_BYTES
from cloister.transparency.note import VerifierKey

_HINT = "Sign it with `cloister cache sign FILE --key KEYFILE`."
read_signed = partial(signed_text.read_signed, check=read_rules, most=MAX_RULES_BYTES, hint=_HINT)
sign_rules = partial(signed_text.signed_text, check=read_rules)


class SignedRules(signed_text.SignedText):
    def __init__(self, path: Path, key: VerifierKey) -> None:
        super().__init__(path, key, read_rules, most=MAX_RULES_BYTES, hint=_HINT)
