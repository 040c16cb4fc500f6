"""The vocabulary of all that verifies: a verdict is a list of named checks. Also how evidence is taken apart."""

import base64
import hmac
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec

from cloister.errors import CloisterError, EvidenceInvalid

_Document = TypeVar("_Document")


class Outcome(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True)
class Check:
    """`reason`: why it failed or was skipped, or what was found. `allowed_by`: the relaxation that tolerates it."""

    name: str
    outcome: Outcome
    reason: str = ""
    required: bool = True
    allowed_by: str = ""

    @property
    def holds(self) -> bool:
        return self.outcome is Outcome.PASS or (self.outcome is Outcome.SKIP and not self.required)


@dataclass(frozen=True)
class Verdict:
    checks: tuple[Check, ...]
    claims: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def passed(self) -> bool:
        """Fails closed: at least one check passed, and no required one failed or was skipped."""
        return any(check.outcome is Outcome.PASS for check in self.checks) and all(check.holds for check in self.checks)

    @property
    def incomplete(self) -> bool:
        """No check failed, but a required one was skipped: not a pass."""
        return not self.passed and all(check.outcome is not Outcome.FAIL for check in self.checks)

    @property
    def broken(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.holds)

    def as_json(self) -> dict[str, Any]:
        word = "pass" if self.passed else "incomplete" if self.incomplete else "fail"
        return {"verdict": word, "checks": [asdict(check) for check in self.checks], "claims": dict(self.claims)}


class Examination:
    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._checks: list[Check] = []
        self._claims: dict[str, Any] = {}

    def passed(self, name: str, found: str = "") -> None:
        self._add(name, Outcome.PASS, found)

    def failed(self, name: str, reason: str) -> None:
        self._add(name, Outcome.FAIL, reason)

    def skipped(self, name: str, reason: str, *, required: bool = True) -> None:
        self._add(name, Outcome.SKIP, reason, required)

    def check(self, name: str, holds: bool, reason: str, found: str = "", *, allowed_by: str = "") -> bool:
        if not holds and allowed_by:
            self._checks.append(Check(self._prefix + name, Outcome.SKIP, reason, False, allowed_by))
        else:
            self._add(name, Outcome.PASS if holds else Outcome.FAIL, found if holds else reason)
        return holds

    def claim(self, **values: Any) -> None:
        self._claims |= values

    def compare(self, name: str, found: bytes, wanted: bytes | None, reason: str) -> None:
        """PASS if the bytes are the same; what was not asked for is skipped."""
        if wanted is None:
            self.skipped(name, "nothing to compare with was given", required=False)
        else:
            self.check(name, hmac.compare_digest(found, wanted), reason)

    def listed(self, name: str, value: str, accepted: Collection[str], where: str) -> None:
        """PASS if the value, in small letters, is one of the policy's `where`, in any."""
        known = value in {each.lower() for each in accepted}
        self.check(name, known, f"{value or 'none'} is not among the policy's {where}", value)

    def include(self, verdict: Verdict) -> None:
        self._checks += verdict.checks
        self._claims |= dict(verdict.claims)

    def verdict(self) -> Verdict:
        return Verdict(tuple(self._checks), MappingProxyType(dict(self._claims)))

    def _add(self, name: str, outcome: Outcome, reason: str, required: bool = True) -> None:
        self._checks.append(Check(self._prefix + name, outcome, reason, required))


def decode_evidence(
    data: bytes, kind: type[_Document], what: str, *, limit: int | None = None, hint: str | None = None
) -> _Document:
    if limit is not None and len(data) > limit:
        raise EvidenceInvalid(f"{what} may have at most {limit} bytes.")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(f"{what} does not decode ({type(wrong).__name__}).", hint=hint) from None


def check_digits(policy: msgspec.Struct, **digits: int) -> None:
    """ValueError unless each value of these fields is hexadecimal and this long: a mistyped one would never match."""
    for name, count in digits.items():
        given = getattr(policy, name)
        values = (given,) if isinstance(given, str) else given or ()
        if not all(re.fullmatch(f"[0-9a-fA-F]{{{count}}}", value) for value in values):
            raise ValueError(f"{name}: each has {count} hexadecimal digits")


def decode_text(text: bytes) -> bytes | None:
    """Bytes written in hex, or in base64 of either alphabet with or without its padding; None if it is neither."""
    packed = b"".join(text.split())
    if re.fullmatch(rb"(0[xX])?([0-9a-fA-F]{2})+", packed):  # thousands of letters that are all hex are not base64
        return bytes.fromhex(packed.decode().removeprefix("0x").removeprefix("0X"))
    letters = packed.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(letters + b"=" * (-len(letters) % 4), validate=True)
    except ValueError:
        return None


class Reader:
    """Takes bytes apart, front to back; raises `wrong` where they end early. `what` names them."""

    order: Literal["little", "big"] = "little"

    def __init__(self, data: bytes, what: str, wrong: type[CloisterError] = EvidenceInvalid) -> None:
        self._data, self._what, self._wrong = data, what, wrong
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise self._wrong(f"{self._what} ends early.")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), self.order)
