"""An issuer's work without its network: a number of tokens a day for each tenant, signed blindly (RFC 9578 §6.2).

It knows how many tokens a tenant took on a day, and none of them: it never sees a nonce. What it granted is on the disk
before a signature leaves.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from msgspec import Struct

from cloister.access.blind_rsa import BlindSignatureError, Signer
from cloister.access.token_keys import TokenKey, TokenKeys
from cloister.access.tokens import KEY_BITS, REQUEST_BYTES, blinded_message
from cloister.errors import QueueFull, SetupError, TokenInvalid
from cloister.files import held, make_folder, needed, read_private, write_private, write_whole

DAY_S = 86400
MOST_AT_ONCE = 256
_MOST_KEY_BYTES = 8192


class _Granted(Struct, forbid_unknown_fields=True):
    day: int = 0
    tenants: dict[str, int] = {}


class Issuer:
    """Keys and counts lie in `folder`, which no other process has: it would grant each tenant's day again. A key counts
    for a period and one more, so that tokens outlast its change."""

    def __init__(
        self,
        folder: Path,
        name: str,
        uri: str,
        *,
        per_day: int,
        period_s: int = DAY_S,
        clock: Callable[[], float] = time,
    ) -> None:
        self._folder, self._name, self._uri, self._clock = folder, name, uri, clock
        self._per_day, self._period = per_day, period_s
        self._signers: dict[int, Signer] = {}
        self._granted = _Granted()
        with needed(f"The issuer cannot keep its keys in {folder}"):
            make_folder(folder, mode=0o700)
            self._lock = held(folder / ".lock", f"Another issuer has {folder}.", "Give each a folder with --folder.")
            if (path := folder / "granted.json").exists():
                self._granted = self._read_granted(path)

    @property
    def keys(self) -> TokenKeys:
        """Those of this period and the last one; the next one too, so that nodes know it in time."""
        now = self._now()
        periods = [
            each
            for each in (now - 1, now, now + 1)
            if each in self._signers or each >= now or self._file(each).exists()
        ]
        return TokenKeys(self._name, self._uri, [self._key(each) for each in periods])

    def issue(self, tenant: str, requests: Sequence[bytes]) -> list[bytes]:
        """All or none: QueueFull if the tenant's day does not have as many left."""
        if not 0 < len(requests) <= MOST_AT_ONCE or any(len(each) != REQUEST_BYTES for each in requests):
            raise TokenInvalid(f"A request asks for 1 to {MOST_AT_ONCE} tokens of type 2.")
        signer, key = self._signer(now := self._now()), self._key(now)
        blinded = [blinded_message(each, key.id) for each in requests]
        self._count(tenant, len(blinded))
        try:
            return [signer.sign(each) for each in blinded]
        except BlindSignatureError as wrong:
            raise TokenInvalid(wrong.message) from None

    def close(self) -> None:
        os.close(self._lock)

    def left(self, tenant: str) -> int:
        return self._per_day - (self._granted.tenants.get(tenant, 0) if self._granted.day == self._today() else 0)

    def _count(self, tenant: str, wanted: int) -> None:
        today = self._today()
        if self._granted.day != today:
            self._granted = _Granted(today)
        if (left := self.left(tenant)) < wanted:
            seconds = int((today + 1) * DAY_S - self._clock()) + 1
            raise QueueFull(
                f"{left} tokens are left for today.", hint="Ask for fewer, or tomorrow.", retry_after=seconds
            )
        self._granted.tenants[tenant] = self._granted.tenants.get(tenant, 0) + wanted
        with needed("What was granted cannot be written down"):
            write_whole(self._folder / "granted.json", msgspec.json.encode(self._granted), mode=0o600)

    def _now(self) -> int:
        return int(self._clock() // self._period)

    def _today(self) -> int:
        return int(self._clock() // DAY_S)

    def _key(self, period: int) -> TokenKey:
        return TokenKey(self._signer(period).public, period * self._period, (period + 2) * self._period)

    def _file(self, period: int) -> Path:
        return self._folder / f"key-{self._period}-{period}.pem"

    def _signer(self, period: int) -> Signer:
        for old in [each for each in self._signers if each < period - 1]:
            del self._signers[old]
        if (signer := self._signers.get(period)) is None:
            path = self._file(period)
            if not path.exists():
                key = rsa.generate_private_key(65537, KEY_BITS)
                write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            signer = self._signers[period] = Signer(_private_key(path))
        return signer

    @staticmethod
    def _read_granted(path: Path) -> _Granted:
        try:
            return msgspec.json.decode(read_private(path, 64 << 20, "record of tokens"), type=_Granted)
        except msgspec.MsgspecError:
            hint = "Move it away: today's tokens are then granted again."
            raise SetupError(f"{path} does not decode.", hint=hint) from None


def _private_key(path: Path) -> rsa.RSAPrivateKey:
    try:
        key = load_pem_private_key(read_private(path, _MOST_KEY_BYTES, "issuer's key"), None)
    except ValueError:
        raise SetupError(f"{path} holds no key.", hint="Move it away: a new one is made.") from None
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size != KEY_BITS:
        raise SetupError(f"{path} holds no RSA key of {KEY_BITS} bits.", hint="Move it away: a new one is made.")
    return key
