"""API keys, as SHA-256 digests alone, and their tenants. One trust group may share a vault (Petridish §7.2)."""

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from time import time as now

from cloister.addresses import is_loopback
from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.errors import KeyExpired, SetupError, Unauthorized
from cloister.fairness import ANONYMOUS
from cloister.files import make_folder, needed, write_whole
from cloister.messages.controller_frontend import LAST_SECOND, MOST_A_DAY, KeyEntry

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_TABLE = re.compile(r"^\[keys\][^\n]*(\n|\Z)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEVELOPMENT_TENANT = "development"


class KeyRing:
    """Finds the owner of a key among `entries`, which go from the controller to the frontends."""

    def __init__(self, entries: Iterable[KeyEntry], clock: Callable[[], float] = now) -> None:
        self.entries, self._clock = tuple(entries), clock

    def admit(self, entries: Iterable[KeyEntry]) -> None:
        self.entries = tuple(entries)

    def caller(self, key: str | None) -> KeyEntry:
        """The key's owner, found in a time that does not depend on the key; Unauthorized if none counts."""
        if not key:
            raise Unauthorized("No API key was given.", hint="Send it as `Authorization: Bearer <key>`.")
        digest = _digest(key)
        found: KeyEntry | None = None
        for entry in self.entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        if found is None:
            raise Unauthorized("The API key is not known here.", hint="Ask the operator for one.")
        if found.expires is not None and self._clock() >= found.expires:
            # Not by strftime, which reads the time zone's file: the sealed API may open none.
            end = datetime.fromtimestamp(found.expires, UTC).replace(tzinfo=None).isoformat(" ", "minutes")
            raise KeyExpired(f"The API key expired at {end} UTC.", hint="Ask the operator for a new one.")
        return found


def load_keys(settings: GatewaySettings) -> KeyRing:
    """The keys of the keys file or, without one and on a loopback address only, the development key."""
    if settings.keys_file is not None:
        return KeyRing(_read(settings.keys_file))
    if not is_loopback(settings.host):
        hint = "Give a keys file (`cloister key new TENANT` makes an entry), or serve on 127.0.0.1."
        raise SetupError(f"The development key is refused on {settings.host}, which others may reach.", hint=hint)
    return KeyRing([KeyEntry(_digest(DEVELOPMENT_KEY), DEVELOPMENT_TENANT, operator=True)])


def new_key() -> str:
    return f"sk-cloister-{secrets.token_urlsafe(32)}"


def key_line(
    key: str,
    tenant: str,
    trust_group: str = "",
    *,
    operator: bool = False,
    expires: date | None = None,
    tokens_a_day: int | None = None,
    requests_a_day: int | None = None,
) -> str:
    """`expires`: the last day, in UTC."""
    fields = [f'tenant = "{_checked(tenant, "tenant")}"']
    if trust_group:
        fields.append(f'trust_group = "{_checked(trust_group, "trust group")}"')
    if operator:
        fields.append("operator = true")
    if expires is not None:
        fields.append(f"expires = {expires.isoformat()}")
    for name, count in (("tokens_a_day", tokens_a_day), ("requests_a_day", requests_a_day)):
        if count is not None:
            fields.append(f"{name} = {count}")
    owner = f"{{ {', '.join(fields)} }}" if len(fields) > 1 else f'"{tenant}"'
    return f'"sha256:{_digest(key).hex()}" = {owner}'


def add_line(path: Path, line: str) -> None:
    """An invalid result is not written. A new file is for its owner alone: it shows the names of tenants."""
    with needed(f"{path} cannot be changed"):
        text = path.read_text("utf-8") if path.exists() else ""
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        made, places = _TABLE.subn(lambda found: f"{found[0].rstrip()}\n{line}\n", text, count=1)
        if not places:
            made = f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}[keys]\n{line}\n"
        _entries(path, made)
        make_folder(path.absolute().parent)
        write_whole(path.absolute(), made.encode(), mode=mode)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _checked(name: object, kind: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith(ANONYMOUS):
        hint = f"Use 1 to 64 letters, digits, dots, dashes or _, not {ANONYMOUS!r} at the beginning."
        raise SetupError(f"A {kind}'s name is not valid.", hint=hint)
    return name


_FIELDS = ("tenant", "trust_group", "operator", "expires", "tokens_a_day", "requests_a_day")


def _entry(digest: bytes, owner: object) -> KeyEntry:
    if not isinstance(owner, dict):
        return KeyEntry(digest, _checked(owner, "tenant"))
    if not owner.keys() <= set(_FIELDS) or type(owner.get("operator", False)) is not bool:
        message = f"An entry of the keys file has a field other than {', '.join(_FIELDS)}."
        raise SetupError(message, hint="Look for a typo.")
    group = _checked(owner["trust_group"], "trust group") if "trust_group" in owner else ""
    tenant, operator = _checked(owner.get("tenant"), "tenant"), owner.get("operator", False)
    expires = _expiry(owner["expires"]) if "expires" in owner else None
    counts = (_count(owner[name], name) if name in owner else None for name in _FIELDS[-2:])
    return KeyEntry(digest, tenant, group, operator, expires, *counts)


def _count(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_A_DAY:
        raise SetupError(f"{name} in the keys file is no whole number.", hint="Like: 100000. 0: no limit.")
    return value


def _expiry(value: object) -> int:
    """A day ends with it, in UTC, as does a time without a zone."""
    try:
        if isinstance(value, datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        elif isinstance(value, date):
            moment = datetime.combine(value + timedelta(days=1), time(), UTC)
        else:
            raise ValueError
        return min(max(0, int(moment.timestamp())), LAST_SECOND)
    except (ValueError, OverflowError):
        hint = "Without quotes: expires = 2027-01-31, or 2027-01-31T12:00:00Z."
        raise SetupError("An entry of the keys file expires at no date.", hint=hint) from None


def _read(path: Path) -> list[KeyEntry]:
    try:
        text = path.read_text("utf-8")
    except OSError as wrong:
        hint = f"Look at {path}; `cloister key new TENANT --into {path}` makes one."
        raise SetupError(f"The keys file cannot be read: {wrong.strerror}.", hint=hint) from None
    except ValueError:
        raise SetupError("The keys file is not text.", hint=f"Look at {path}.") from None
    return _entries(path, text)


def _entries(path: Path, text: str) -> list[KeyEntry]:
    try:
        table = tomllib.loads(text).get("keys")
    except ValueError:
        raise SetupError("The keys file is not valid TOML.", hint=f"Look at {path}.") from None
    if not isinstance(table, dict) or not table:
        hint = f"`cloister key new TENANT --into {path}` adds one."
        raise SetupError("The keys file admits no key: its [keys] table is missing or empty.", hint=hint)
    entries: list[KeyEntry] = []
    for name, owner in table.items():
        digest = _DIGEST.fullmatch(name)
        if digest is None:
            # The name is not shown: it may be the key itself.
            hint = "Plain keys are not accepted; use the line `cloister key new TENANT` prints."
            raise SetupError('An entry of the keys file is not "sha256:<64 hex digits>".', hint=hint)
        entries.append(_entry(bytes.fromhex(digest[1]), owner))
    groups = {(entry.tenant, entry.trust_group) for entry in entries}
    if len(groups) != len({tenant for tenant, _ in groups}):
        hint = "Give all keys of a tenant the same trust_group."
        raise SetupError("A tenant has keys of more than one trust group.", hint=hint)
    for name in _FIELDS[-2:]:
        quotas = {(entry.tenant, count) for entry in entries if (count := getattr(entry, name)) is not None}
        if len(quotas) != len({tenant for tenant, _ in quotas}):
            hint = "All keys of a tenant share one quota: give it once, or the same each time."
            raise SetupError(f"A tenant has keys with different {name}.", hint=hint)
    return entries
