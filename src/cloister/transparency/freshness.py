"""Whether a release that is public is still to be accepted: not below the policy's version, not expired, and its log
lately witnessed, so that revocations cannot be held back for longer. All checks are pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from cloister.checks import Examination
from cloister.errors import SetupError
from cloister.transparency.checkpoint import USUAL_CHECKPOINT_AGE_S, ReleaseTrust

CLOCKS_MAY_DIFFER = timedelta(minutes=5)


def order_of(version: str) -> tuple[int, ...] | None:
    """The key that versions are ordered by; None for one that is more than numbers and dots."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,7}", version, re.ASCII):
        return None
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def check_version(found: Examination, version: str, trusted: ReleaseTrust) -> None:
    if not trusted.minimum_version:
        found.skipped("release version", f"{version}; the policy asks for none", required=False)
        return
    least, have = order_of(trusted.minimum_version), order_of(version)
    if least is None:
        raise SetupError(f"minimum_version is numbers and dots, not {trusted.minimum_version!r}.", hint="Like: 1.2.0")
    new_enough = have is not None and have >= least
    found.check("release version", new_enough, f"{version} is not {trusted.minimum_version} or newer", version)


def check_expiry(found: Examination, expires: date | None, at: datetime) -> None:
    if expires is None:
        found.skipped("release expiry", "the log gives it no last day", required=False)
    else:
        day = at.astimezone(UTC).date()
        found.check("release expiry", day <= expires, f"its last day was {expires}", f"to {expires}")


def check_age(found: Examination, cosigned: Iterable[int], trusted: ReleaseTrust, at: datetime) -> None:
    """A checkpoint is as old as the oldest signature of its quorum, the newest being counted first."""
    name = "log freshness"
    if not trusted.needed:
        found.skipped(name, "the policy names no witness, so the checkpoint's age is unknown", required=False)
        return
    times = sorted(cosigned, reverse=True)
    if len(times) < trusted.needed:
        found.skipped(name, "too few witnesses signed")
        return
    age = at.timestamp() - times[trusted.needed - 1]
    usual = -CLOCKS_MAY_DIFFER.total_seconds() <= age <= min(trusted.max_checkpoint_age_s, USUAL_CHECKPOINT_AGE_S)
    relaxed = not usual and 0 < age <= trusted.max_checkpoint_age_s
    days = f"witnessed {age / 86400:.1f} days ago"
    allowed = f"log.max_checkpoint_age_s {trusted.max_checkpoint_age_s:.0f}" if relaxed else ""
    found.check(name, usual, days, days, allowed_by=allowed)
