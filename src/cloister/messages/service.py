"""What the controller and the service say to each other. The service hears of tokens and links, never of text."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from cloister.messages.generation import (
    Accepted,
    AskStats,
    Cancel,
    Failed,
    Name,
    OfRequest,
    Ready,
    Stats,
    Submit,
    Tokens,
)
from cloister.messages.lifecycle import StartFailed

LinkId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_CHARGES = 256
Charges = Annotated[dict[Name, Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=MAX_CHARGES)]
"""What tenants have had since the last such message, as fairness.ServiceMeter counts."""


class AttachLink(Struct, frozen=True, tag="attach_link", forbid_unknown_fields=True):
    """Controller → service, with two descriptors (question, answer): a vault that may be asked from now on."""

    link: LinkId


class DetachLink(Struct, frozen=True, tag="detach_link", forbid_unknown_fields=True):
    """Controller → service: that vault is gone. Requests that still need it fail."""

    link: LinkId


class Pause(Struct, frozen=True, tag="pause", forbid_unknown_fields=True):
    """Controller → service: after the step under way, leave the cores to a vault and say Paused."""


class Resume(Struct, frozen=True, tag="resume", forbid_unknown_fields=True):
    """Controller → service: compute again, one step at least before the next Pause counts. Vaults `charged` this."""

    charged: Charges = field(default_factory=dict)


class Paused(Struct, frozen=True, tag="paused", forbid_unknown_fields=True):
    """Service → controller: no step until Resume. The service `charged` this."""

    charged: Charges = field(default_factory=dict)


class Label(OfRequest, frozen=True, tag="label"):
    """Controller → service: a detector found nothing private in so many tokens at the beginning of this prompt.

    One that comes late, or for a request nobody knows, changes nothing: until then all of a prompt is private.
    """

    public_tokens: Annotated[int, Meta(ge=0, le=1_048_576)]


class Forget(Struct, frozen=True, tag="forget", forbid_unknown_fields=True):
    """Controller → service: keep nothing of this tenant's prompts any more."""

    tenant: Name


class AskView(OfRequest, frozen=True, tag="ask_view"):
    """Frontend → controller: what has the service received of this request (the page's "What the provider sees")?"""


class View(OfRequest, frozen=True, tag="view"):
    """Controller → frontend: what the service has received and made of one request.

    By the controller's own books: the prompt's tokens it gave it (at `partitioned`: the public ones), the answer's, how
    many queries went to the vault and how many contributions came back, in rows and bytes. The contributions themselves
    stay in the service: whoever carries them out of the node can solve for the prompt. At `obfuscated` several
    `streams` stand in place of the one answer.
    """

    known: bool
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    asked_rows: int = 0
    asked_bytes: int = 0
    answered_rows: int = 0
    answered_bytes: int = 0
    layers: int = 0
    streams: tuple[tuple[int, ...], ...] = ()


ToSealedService = Submit | Cancel | AskStats | AttachLink | DetachLink | Pause | Resume | Label | Forget
FromSealedService = Ready | StartFailed | Accepted | Tokens | Failed | Stats | Paused
