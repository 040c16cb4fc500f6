"""Statements of nodes, as their software would make them."""

from __future__ import annotations

from typing import Any

import msgspec

from cloister.attest.evidence import AttestedSettings, Statement

SETTINGS = AttestedSettings(sandbox="whole", keys="own", session_idle_ms=600_000, mpc="off")


def made_statement(settings: AttestedSettings = SETTINGS, **changes: Any) -> Statement:
    facts: dict[str, Any] = {"model": "m", "weights": bytes(32), "settings_hash": settings.hash, "started": 1}
    facts |= {"made_ms": 1_000_000, "key_until_ms": 4_600_000, "code": "release"}
    return Statement(**facts | {"settings": settings, "levels": ("open", "partitioned")} | changes)


def statement(settings: AttestedSettings = SETTINGS, **changes: Any) -> bytes:
    return msgspec.json.encode(made_statement(settings, **changes))
