"""API keys and the tenants they belong to. Only SHA-256 digests of keys are kept, in memory and on disk.

This module knows nothing of HTTP. Whatever is doubtful (no key, an unreadable file, a malformed line) means no.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path

from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.errors import SetupError, Unauthorized

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEVELOPMENT_TENANT = "development"


class KeyRing:
    """Answers which tenant a key belongs to."""

    def __init__(self, tenants: Mapping[bytes, str]) -> None:
        self._tenants = tuple(tenants.items())

    def tenant(self, key: str | None) -> str:
        """The key's tenant, found in a time that does not depend on the key; Unauthorized when there is none."""
        if not key:
            raise Unauthorized("No API key was given.", hint="Send it as `Authorization: Bearer <key>`.")
        digest = _digest(key)
        found: str | None = None
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            raise Unauthorized("The API key is not known here.", hint="Ask the operator for one.")
        return found


def load_keys(settings: GatewaySettings) -> KeyRing:
    """The keys of the keys file or, without one and on a loopback address only, the development key."""
    if settings.keys_file is not None:
        return KeyRing(_read(settings.keys_file))
    if not is_loopback(settings.host):
        raise SetupError(
            f"The development key is refused on {settings.host}, which other machines may reach.",
            hint="Give a keys file (`cloister key new TENANT` makes an entry), or serve on 127.0.0.1.",
        )
    return KeyRing({_digest(DEVELOPMENT_KEY): DEVELOPMENT_TENANT})


def new_key() -> str:
    """A fresh key of 256 random bits, to be shown once."""
    return f"sk-cloister-{secrets.token_urlsafe(32)}"


def key_line(key: str, tenant: str) -> str:
    """The line that admits this key, to be put under `[keys]` in the keys file."""
    _check_tenant(tenant)
    return f'"sha256:{_digest(key).hex()}" = "{tenant}"'


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than localhost might be anything, so: no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _check_tenant(tenant: object) -> str:
    if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
        raise SetupError(
            "A tenant's name is not valid.", hint="Use 1 to 64 letters, digits, dots, dashes or underscores."
        )
    return tenant


def _read(path: Path) -> dict[bytes, str]:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("keys")
    except OSError as wrong:
        raise SetupError(f"The keys file cannot be read: {wrong.strerror}.", hint=f"Look at {path}.") from None
    except ValueError:
        raise SetupError("The keys file is not valid TOML.", hint=f"Look at {path}.") from None
    if not isinstance(table, dict) or not table:
        raise SetupError(
            "The keys file admits nobody: its [keys] table is missing or empty.",
            hint=f"Add the line `cloister key new TENANT` prints to {path}.",
        )
    tenants: dict[bytes, str] = {}
    for name, tenant in table.items():
        digest = _DIGEST.fullmatch(name)
        if digest is None:
            # The name is not shown: somebody may have put the key itself there.
            raise SetupError(
                'An entry of the keys file is not "sha256:<64 hex digits>".',
                hint="Plain keys are not accepted; use the line `cloister key new TENANT` prints.",
            )
        tenants[bytes.fromhex(digest[1])] = _check_tenant(tenant)
    return tenants
