"""Between the controller and the detector: text in, labels out. What comes back are codes, never words.

A text is as long as `MAX_TEXT` at most, cut into consecutive blocks; there is a label for each.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.generation import RequestId
from cloister.messages.lifecycle import Openings, Ping, Pong, StartFailed

MAX_TEXT = 1 << 20
MAX_BLOCKS = 1 << 16
MAX_RULES_BYTES = 60_000
"""A signed note holds little more."""

RulesText = Annotated[str, Meta(max_length=MAX_RULES_BYTES)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Codes = Annotated[bytes, Meta(max_length=MAX_BLOCKS)]


class Label(IntEnum):
    """What becomes of a block. Only PUBLIC may be shared; UNCERTAIN is private until tier 3 says otherwise."""

    PRIVATE = 0
    UNCERTAIN = 1
    PUBLIC = 2


class Category(IntEnum):
    """What a block is about: the types of SafeKV's Table IV in its order, blacklists, hidden text, and what only the
    tagger tells apart. INHERITED: nothing was found here, but before it."""

    GENERAL = 0
    ACCOUNT = 1
    IDENTITY = 2
    LOCATION = 3
    BIOMETRIC = 4
    NETWORK = 5
    SOFTWARE_DEVICE = 6
    HARDWARE_DEVICE = 7
    CULTURAL = 8
    FINANCIAL = 9
    SOCIAL = 10
    SERVICE_CONTENT = 11
    SERVICE_LOG = 12
    BLACKLIST = 13
    HIDDEN = 14
    NAME = 15
    ORGANISATION = 16
    TIME = 17
    HEALTH = 18
    TRAIT = 19
    NUMBER = 20
    SECRET = 21
    INHERITED = 254
    NONE = 255


class StartDetector(Struct, frozen=True, tag="start_detector", forbid_unknown_fields=True):
    """Controller → detector, first of all; `rules`: an operator's own, verified, beside those shipped."""

    version: int
    rules: RulesText = ""
    allow_degraded: bool = False


class DetectorReady(Struct, frozen=True, tag="detector_ready", forbid_unknown_fields=True):
    """Detector → controller: sealed, with so many rules."""

    version: int
    rules: int
    missing: tuple[str, ...] = ()


class LoadRules(Struct, frozen=True, tag="load_rules", forbid_unknown_fields=True):
    """Controller → detector: the operator's rules from now on, in place of those before."""

    rules: RulesText


class KnowOpenings(Struct, frozen=True, tag="know_openings", forbid_unknown_fields=True):
    """Controller → detector: how the served model's own chat template begins a prompt (prefix.detection.openings)."""

    openings: Openings


class RulesLoaded(Struct, frozen=True, tag="rules_loaded", forbid_unknown_fields=True):
    """Detector → controller. If it is not `taken`, the rules before stay; `rule` counts from 1, 0 is the whole file."""

    taken: bool
    rules: int
    wrong: Literal["", "form", "pattern"] = ""
    rule: Annotated[int, Meta(ge=0, le=1 << 16)] = 0


Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Ends = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_TEXT)], ...], Meta(max_length=MAX_BLOCKS)]


class Classify(Struct, frozen=True, tag="classify", forbid_unknown_fields=True):
    """Controller → detector: a prompt's text and where each block ends in it, in characters.

    `load` and `suspicion` move the thresholds (SafeKV §V-D).
    """

    request_id: RequestId
    text: Text
    ends: Ends
    load: Share = 0.0
    suspicion: Share = 0.0

    def __repr__(self) -> str:
        return "Classify(…)"


class Labels(Struct, frozen=True, tag="labels", forbid_unknown_fields=True):
    """Detector → controller: for each block a Label, the tier that decided (0: none), and a Category."""

    request_id: RequestId
    labels: Codes
    tiers: Codes
    categories: Codes


ToDetector = StartDetector | LoadRules | KnowOpenings | Classify | Ping
FromDetector = DetectorReady | StartFailed | RulesLoaded | Labels | Pong
