"""What the controller and the service say to each other. The service hears of tokens and links, never of text."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from cloister.messages.detector import Codes
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
from cloister.messages.lifecycle import Ping, Pong, StartFailed

LinkId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_CHARGES = 256
Charges = Annotated[dict[Name, Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=MAX_CHARGES)]
"""What tenants have had since the last such message, as fairness.ServiceMeter counts."""


MAX_PLACES = 64
Place = Annotated[int, Meta(ge=0, lt=MAX_PLACES)]


class LinkPlace(Struct, frozen=True, tag="link_place", forbid_unknown_fields=True):
    """Service → controller, with a descriptor, before it is sealed: memory of its device for one vault's link. A device
    that processes share maps nothing more for a sealed process."""

    place: Place


class WeightsPlace(Struct, frozen=True, tag="weights_place", forbid_unknown_fields=True):
    """Service → controller, with a descriptor, before it is sealed: the weights in its device's memory, which vaults
    map to read them."""


class AttachLink(Struct, frozen=True, tag="attach_link", forbid_unknown_fields=True):
    """Controller → service: a vault that may be asked from now on. With two descriptors (question, answer), or at a
    `place` that the service made before."""

    link: LinkId
    place: Place | None = None


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

    One that comes late, or for a request nobody knows, changes nothing: until then all of a prompt is private. After
    one that is not `final` another may say more.
    """

    public_tokens: Annotated[int, Meta(ge=0, le=1_048_576)]
    final: bool = True


class Forget(Struct, frozen=True, tag="forget", forbid_unknown_fields=True):
    """Controller → service: keep nothing of this tenant's prompts any more."""

    tenant: Name


class Probed(Struct, frozen=True, tag="probed", forbid_unknown_fields=True):
    """Service → controller: something public of `owner`'s looks probed, last by `suspect` (SafeKV §V-C).

    It was demoted. Two names: there is no room for more.
    """

    owner: Name
    suspect: Name


class AskView(OfRequest, frozen=True, tag="ask_view"):
    """Frontend → controller: what has the service received of this request (the page's "What the provider sees")?"""


class View(OfRequest, frozen=True, tag="view"):
    """Controller → frontend: what the service has received and made of one request.

    By the controller's own books: the prompt's tokens it gave it (at `partitioned`: the public ones), the answer's, how
    many queries went to the vault and how many contributions came back, in rows and bytes. The contributions themselves
    stay in the service: whoever carries them out of the node can solve for the prompt. At `obfuscated` several
    `streams` stand in place of the one answer. For a moment after its end, a request is still `known`, but for a prompt
    that the service was given whole (controller/views.py).

    Where a detector read the prompt, `labels`, `tiers` and `categories` have a code for each block of it, as in
    messages.detector.Labels. `found` of its tokens were found computed, `found_shared` of them in public blocks.
    """

    known: bool
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    asked_rows: int = 0
    asked_bytes: int = 0
    answered_rows: int = 0
    answered_bytes: int = 0
    layers: int = 0
    found: int = 0
    found_shared: int = 0
    labels: Codes = b""
    tiers: Codes = b""
    categories: Codes = b""
    streams: tuple[tuple[int, ...], ...] = ()


ToSealedService = Submit | Cancel | AskStats | AttachLink | DetachLink | Pause | Resume | Label | Forget | Ping
Announced = LinkPlace | WeightsPlace
FromSealedService = Announced | Ready | StartFailed | Accepted | Tokens | Failed | Stats | Paused | Probed | Pong
