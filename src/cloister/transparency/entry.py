"""What a log's entries say, byte for byte: "cloister release", version, "sha256:<measurement in hex>" and perhaps
"expires 2027-01-31", a line each; or "cloister revocation" and the measurement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

from cloister.transparency.manifest import measurement as measurement_of
from cloister.transparency.manifest import read_manifest

_RELEASE = re.compile(
    r"cloister release\n([0-9A-Za-z][0-9A-Za-z.+!-]{0,63})\nsha256:([0-9a-f]{64})\n(?:expires (\d{4}-\d\d-\d\d)\n)?"
)
_REVOCATION = re.compile(r"cloister revocation\nsha256:([0-9a-f]{64})\n")


@dataclass(frozen=True)
class Published:
    """A release with this measurement; `expires` is the last day on which a client accepts it."""

    version: str
    measurement: bytes
    expires: date | None = None

    def encoded(self) -> bytes:
        last = f"expires {self.expires.isoformat()}\n" if self.expires else ""
        return f"cloister release\n{self.version}\nsha256:{self.measurement.hex()}\n{last}".encode()


@dataclass(frozen=True)
class Revoked:
    measurement: bytes

    def encoded(self) -> bytes:
        return f"cloister revocation\nsha256:{self.measurement.hex()}\n".encode()


def entry_of(manifest: bytes, expires: date | None = None) -> bytes:
    return Published(read_manifest(manifest).version, measurement_of(manifest), expires).encoded()


def read_entry(entry: bytes) -> Published | Revoked | None:
    """What an entry says; None if it is of no kind known here."""
    try:
        text = entry.decode("ascii")
        if found := _RELEASE.fullmatch(text):
            last = date.fromisoformat(found[3]) if found[3] else None
            return Published(found[1], bytes.fromhex(found[2]), last)
        if found := _REVOCATION.fullmatch(text):
            return Revoked(bytes.fromhex(found[1]))
    except ValueError:
        pass
    return None
