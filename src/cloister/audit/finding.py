"""What an attempt found. What was not tried is no pass."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    OFF = "OFF"
    NOT_TRIED = "NOT TRIED"


@dataclass(frozen=True, slots=True)
class Finding:
    outcome: Outcome
    reason: str


def held(reason: str) -> Finding:
    """The attempt did not succeed."""
    return Finding(Outcome.PASS, reason)


def broken(reason: str) -> Finding:
    return Finding(Outcome.FAIL, reason)


def off(reason: str) -> Finding:
    """The node does not do what could be attacked."""
    return Finding(Outcome.OFF, reason)


def not_tried(reason: str) -> Finding:
    return Finding(Outcome.NOT_TRIED, reason)
