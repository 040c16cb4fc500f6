"""Secrets outside the replaced texts (stop strings, names, metadata) would be the same in all λ+1 prompts and tell the
real one: such a request is refused before anything is sent. Errors name the field and no word of it."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from cloister.errors import ObfuscationRefused
from cloister.obfuscation.parts import is_telling
from cloister.obfuscation.tags import parse_redacted

_TELLING = re.compile(r"\w{3,}")  # a shorter word is in too many others
_WORD = re.compile(r"\w")
_NO_PARTS = frozenset(("model",))  # a model's name may share a word with a secret


class Elsewhere:
    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = frozenset(secret.casefold() for secret in secrets)
        words = (word for secret in self._secrets for word in _TELLING.findall(secret))
        self._words = frozenset(filter(is_telling, words))

    def mentions(self, text: str) -> bool:
        said = text.casefold()
        return any(re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", said) for secret in self._secrets if secret in said)

    def check(self, field: str, text: str) -> None:
        """ObfuscationRefused where the field says a secret, or a word of one."""
        words = self._words if field not in _NO_PARTS else frozenset[str]()
        if self.mentions(text) or not words.isdisjoint(re.findall(r"\w+", text.casefold())):
            raise refused(field)

    def check_stops(self, stops: Iterable[str]) -> None:
        """The same for strings that are looked for in the answers letter by letter: any part of a word counts."""
        for stop in stops:
            said = stop.casefold()
            if any(part in said for part in self._secrets | self._words):
                raise refused("stop")
            if any(word in secret for word in _TELLING.findall(said) for secret in self._secrets):
                raise refused("stop")

    def check_all(self, stops: Iterable[str], names: Iterable[str]) -> None:
        """What a vault gets of a request beside its prompt."""
        self.check_stops(stops)
        for name in names:
            self.check("session or cache_salt", name)


def refuse_words(stops: Iterable[str]) -> None:
    """Secrets are found later, in another process: no code here can know whether a word is one."""
    if any(_WORD.search(stop) for stop in stops):
        unknown = "what the vault finds to be a secret, this machine does not know"
        message = f"With auto_redact a stop string may have no letters or digits: {unknown}, and stop strings are read"
        hint = "Stop at signs or line ends, or mark all secrets yourself and leave auto_redact out."
        raise ObfuscationRefused(f"{message} outside the vault.", param="stop", hint=hint)


def refuse_biases(biases: object) -> None:
    """Token ids say words, too, and who sends them need not have the tokenizer that could tell which."""
    if biases:
        message = "logit_bias: Tokens are the same for all variants, and could be a secret's."
        hint = "Leave logit_bias out where a prompt has secrets."
        raise ObfuscationRefused(message, param="logit_bias", hint=hint)


def marked_secrets(given: Any) -> set[str]:
    """TagsInvalid where tags are not in order."""
    return {text.secret(span) for text in map(parse_redacted, strings_in(given)) for span in text.spans}


def strings_in(value: Any) -> Iterator[str]:
    """Names of members aside. Values may be nested as deep as a parser lets them."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value


def refused(field: str) -> ObfuscationRefused:
    message = f"The field {field[:64]!r} says a secret, or a word of one, where nothing can stand in its place."
    hint = "Say secrets in the texts of messages or prompts alone."
    return ObfuscationRefused(message, param=field[:64], hint=hint)
