"""An issuer's public keys and the time in which each counts: one list for all users (RFC 9578 §4)."""

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec import Meta, Struct

from cloister.access.tokens import TOKEN_TYPE, Challenge, Token, decode_key, encode_key, key_id_of
from cloister.errors import TokenInvalid

MEDIA_TYPE = "application/private-token-issuer-directory"
MOST_KEYS = 16
MOST_BYTES = 65536
_Time = Annotated[int, Meta(ge=0, le=2**53)]


class _Entry(
    Struct, frozen=True, rename={"type": "token-type", "key": "token-key", "since": "not-before", "until": "not-after"}
):
    type: int
    key: Annotated[str, Meta(max_length=1024)]
    since: _Time = 0
    until: _Time = 2**53


class _Directory(Struct, frozen=True, rename={"uri": "issuer-request-uri", "keys": "token-keys"}):
    uri: Annotated[str, Meta(max_length=2048)]
    keys: Annotated[tuple[_Entry, ...], Meta(min_length=1, max_length=MOST_KEYS)]
    issuer: Annotated[str, Meta(min_length=1, max_length=255)] = ""


@dataclass(frozen=True)
class TokenKey:
    key: rsa.RSAPublicKey
    since: int
    until: int

    @cached_property
    def id(self) -> bytes:
        return key_id_of(self.key)

    def counts(self, now: float) -> bool:
        return self.since <= now < self.until


class TokenKeys:
    """Which tokens count: those for `challenge` whose key counts now."""

    def __init__(self, issuer: str, uri: str, keys: Iterable[TokenKey]) -> None:
        self.issuer, self.uri = issuer, uri
        self.challenge = Challenge(issuer)
        self._keys = {key.id: key for key in keys}

    @classmethod
    def decode(cls, data: bytes) -> "TokenKeys":
        if len(data) > MOST_BYTES:
            raise TokenInvalid("An issuer's list of keys is too long.")
        try:
            found = msgspec.json.decode(data, type=_Directory)
            keys = [
                TokenKey(decode_key(base64.b64decode(each.key, altchars=b"-_", validate=True)), each.since, each.until)
                for each in found.keys
                if each.type == TOKEN_TYPE
            ]
        except (msgspec.MsgspecError, binascii.Error):
            raise TokenInvalid("An issuer's list of keys does not decode.") from None
        if not keys or not found.issuer:
            raise TokenInvalid("An issuer's list of keys names no issuer, or no key for tokens of type 2.")
        return cls(found.issuer, found.uri, keys)

    def encode(self) -> bytes:
        """The one way to write it, so that its hash means something."""
        keys = [
            {
                "not-after": each.until,
                "not-before": each.since,
                "token-key": base64.urlsafe_b64encode(encode_key(each.key)).decode(),
                "token-type": TOKEN_TYPE,
            }
            for each in self.all
        ]
        directory = {"issuer": self.issuer, "issuer-request-uri": self.uri, "token-keys": keys}
        return json.dumps(directory, sort_keys=True, separators=(",", ":")).encode()

    @property
    def all(self) -> list[TokenKey]:
        return sorted(self._keys.values(), key=lambda each: (each.since, each.id))

    def current(self, now: float) -> TokenKey:
        """What all clients take new tokens of: the key that began to count last."""
        counting = [each for each in self.all if each.counts(now)]
        if not counting:
            raise TokenInvalid("None of the issuer's keys counts now.")
        return counting[-1]

    def check(self, token: Token, now: float) -> TokenKey:
        """The key that signed it; TokenInvalid for a token that is forged, foreign or expired."""
        if (key := self._keys.get(token.key_id)) is None:
            raise TokenInvalid("The token is of another issuer, or of a key that is no longer listed.")
        if not key.counts(now):
            raise TokenInvalid("The token has expired.")
        if token.challenge_digest != self.challenge.digest:
            raise TokenInvalid("The token is for another challenge.")
        token.verify(key.key)
        return key
