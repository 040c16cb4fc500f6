"""The secrets that the obfuscating proxy remembers, by caller (API key): no program finds out by its own requests
whether a word is another's secret. A caller with secrets is kept while the proxy runs: other substitutes would
show which prompt repeats."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import httpx2

from cloister.client.obfuscating_transport import AsyncObfuscatingTransport
from cloister.client.winnow import CREDENTIALS
from cloister.errors import ObfuscationRefused
from cloister.obfuscation.requests import Obfuscation

MOST_CALLERS = 256


@dataclass
class _Caller:
    obfuscation: Obfuscation
    asking: int = 0

    @property
    def forgettable(self) -> bool:
        return not self.asking and not self.obfuscation.remembers


class Callers:
    """`like` has the settings of the obfuscation; its memory is not used."""

    def __init__(self, like: Obfuscation, most: int = MOST_CALLERS) -> None:
        self._like, self._most = like, most
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, _Caller] = {}

    @contextmanager
    def asking(self, headers: Iterable[tuple[str, str]]) -> Iterator[Obfuscation]:
        """The memory of the caller with these headers. ObfuscationRefused where there is no room for one more."""
        shown = sorted((name.lower(), value) for name, value in headers if name.lower() in CREDENTIALS)
        if not shown:
            yield self._like.another()
            return
        # Keys themselves are not kept.
        caller = self._caller(hmac.digest(self._key, json.dumps(shown).encode(), hashlib.sha256))
        caller.asking += 1
        try:
            yield caller.obfuscation
        finally:
            caller.asking -= 1

    def _caller(self, name: bytes) -> _Caller:
        if name not in self._known:
            if len(self._known) >= self._most:
                self._known = {each: one for each, one in self._known.items() if not one.forgettable}
            if len(self._known) >= self._most:
                raise ObfuscationRefused(
                    f"This proxy remembers the secrets of {self._most} API keys and may forget none of them.",
                    hint="Use one of those keys, or start the proxy again.",
                )
            self._known[name] = _Caller(self._like.another())
        return self._known[name]


class PerCallerTransport(AsyncObfuscatingTransport):
    def __init__(self, wire: httpx2.AsyncBaseTransport, like: Obfuscation) -> None:
        super().__init__(wire, like)
        self._callers = Callers(like)

    def _memory(self, request: httpx2.Request) -> AbstractContextManager[Obfuscation]:
        return self._callers.asking(request.headers.multi_items())
