"""Between the controller and the service, which gets tokens and links and no text."""

from typing import Annotated

from msgspec import Meta, field

from cloister.levels import PolicyName
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Ready, Stats, Tokens
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.types import (
    MAX_SEQUENCES,
    Message,
    Name,
    Partition,
    PromptTokens,
    RequestMessage,
    Salt,
    SamplingParams,
)

LinkId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_CHARGES = 256
# By tenant since the last such message, as fairness.ServiceMeter counts.
Charges = Annotated[dict[Name, Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=MAX_CHARGES)]
MAX_SLOTS = 64
Slot = Annotated[int, Meta(ge=0, lt=MAX_SLOTS)]


class GeneratePrompt(RequestMessage, frozen=True):
    """Controller → service, at `open` and `shared`."""

    tenant: Name
    prompt: PromptTokens
    params: SamplingParams
    public: Annotated[int, Meta(ge=0, le=1_048_576)] = 0
    salt: Salt = ""
    policy: PolicyName = "none"


class GeneratePartitioned(RequestMessage, frozen=True):
    """Controller → service, at `partitioned`: continue after the vault's first token, asking the vault."""

    tenant: Name
    public: PromptTokens
    params: SamplingParams
    partition: Partition
    salt: Salt = ""
    made: PromptTokens = ()  # tokens after the first, of a service that ended


class GenerateVariants(RequestMessage, frozen=True):
    """Controller → service, at `obfuscated`: the same for λ+1 sequences on one link. They share their public tokens."""

    tenant: Name
    public: PromptTokens
    params: SamplingParams
    partitions: Annotated[tuple[Partition, ...], Meta(min_length=2, max_length=MAX_SEQUENCES)]
    salt: Salt = ""
    made: Annotated[tuple[PromptTokens, ...], Meta(max_length=MAX_SEQUENCES)] = ()


Generate = GeneratePrompt | GeneratePartitioned | GenerateVariants


class LinkSlot(Message, frozen=True):
    """Service → controller, with a descriptor, before the seal: its device's memory for one vault's link."""

    slot: Slot


class WeightsMemory(Message, frozen=True):
    """Service → controller, with a descriptor, before the seal: the weights in its device's memory, for vaults."""


class AttachLink(Message, frozen=True):
    """Controller → service: a vault to ask, by two descriptors (question, answer) or at a `slot` made before."""

    link: LinkId
    slot: Slot | None = None


class DetachLink(Message, frozen=True):
    """Controller → service: that vault is gone. Requests that still need it fail."""

    link: LinkId


class Pause(Message, frozen=True):
    """Controller → service: after the step under way, leave the cores to a vault and answer with Paused."""


class Resume(Message, frozen=True):
    """Controller → service: compute again, one step at least before the next Pause counts. Vaults `charged` this."""

    charged: Charges = field(default_factory=dict)


class Paused(Message, frozen=True):
    """Service → controller: no step until Resume. The service `charged` this."""

    charged: Charges = field(default_factory=dict)


class PublicPrefix(RequestMessage, frozen=True):
    """Controller → service: the first public tokens, and of these the registered. If not `final`, more may follow."""

    public_tokens: Annotated[int, Meta(ge=0, le=1_048_576)]
    registered: Annotated[int, Meta(ge=0, le=1_048_576)] = 0


class ForgetTenant(Message, frozen=True):
    """Controller → service: drop everything of this tenant's prompts."""

    tenant: Name


ToSealedService = (
    Generate | Cancel | AskStats | AttachLink | DetachLink | Pause | Resume | PublicPrefix | ForgetTenant | Ping
)
Announced = LinkSlot | WeightsMemory
FromSealedService = Announced | Ready | StartFailed | Accepted | Tokens | Failed | Stats | Paused | Pong
