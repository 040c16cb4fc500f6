"""Between the controller and the detector: a text goes in, codes for its consecutive blocks come out."""

from enum import IntEnum
from typing import Annotated, Literal

from msgspec import Meta

from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.types import Message, Openings, RequestMessage, SilentRepr

MAX_TEXT = 1 << 20
MAX_BLOCKS = 1 << 16
MAX_RULES_BYTES = 60_000  # a signed note holds little more
RulesText = Annotated[str, Meta(max_length=MAX_RULES_BYTES)]
Codes = Annotated[bytes, Meta(max_length=MAX_BLOCKS)]


class Label(IntEnum):
    """Whether a block may be shared: only PUBLIC may."""

    PRIVATE = 0
    UNCERTAIN = 1
    PUBLIC = 2


class Category(IntEnum):
    """SafeKV's Table IV in its order, blacklists, hidden text, the tagger's. INHERITED: from a block before."""

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


class StartDetector(Message, frozen=True):
    """Controller → detector, first; `rules`: the operator's, verified, in addition to those shipped."""

    rules: RulesText = ""
    allow_degraded: bool = False


class DetectorReady(Message, frozen=True):
    """Detector → controller: sealed, with its rules."""


class LoadRules(Message, frozen=True):
    """Controller → detector: from now on these are the operator's rules."""

    rules: RulesText


class KnowOpenings(Message, frozen=True):
    """Controller → detector: how the served model's own chat template begins a prompt (detection.openings)."""

    openings: Openings


class RulesLoaded(Message, frozen=True):
    """Detector → controller. If not `taken`, the old rules stay; `rule` counts from 1, 0 is the whole file."""

    taken: bool
    rules: int
    wrong: Literal["", "form", "pattern"] = ""
    rule: Annotated[int, Meta(ge=0, le=1 << 16)] = 0


Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Ends = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_TEXT)], ...], Meta(max_length=MAX_BLOCKS)]


class Classify(SilentRepr, RequestMessage, frozen=True):
    """Controller → detector: a text, its blocks' ends in characters."""

    text: Text
    ends: Ends


class Labels(RequestMessage, frozen=True):
    """Detector → controller: for each block a Label, the tier that decided (0: none), and a Category."""

    labels: Codes
    tiers: Codes
    categories: Codes


NO_LABELS = Labels(0, b"", b"", b"")
ToDetector = StartDetector | LoadRules | KnowOpenings | Classify | Ping
FromDetector = DetectorReady | StartFailed | RulesLoaded | Labels | Pong
