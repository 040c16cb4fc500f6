"""Between the bridges of a network link (link.network): the server bridge is beside the service, the vault bridge
beside the vault."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.types import Digest, Message, SilentRepr

Role = Literal["server", "vault_host"]  # the server connects, the vault host listens
Count = Annotated[int, Meta(ge=1, le=2**20)]
MAX_PART_BYTES = 1 << 15
MAX_DOCUMENT_BYTES = 1 << 19
Encoded = Annotated[bytes, Meta(min_length=1, max_length=4096)]


class Credentials(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """A role's key and certificate (PEM), the other's (DER), the SHA-256 of the vault host's checked one."""

    role: Role
    own: Encoded
    peer: Encoded
    pinned: Annotated[bytes, Meta(max_length=32)] = b""


class VaultRequest(Message, frozen=True):
    """Server bridge → vault bridge, first: a vault for this model. Both sides must agree on all fields."""

    version: int
    model: Digest
    heads: Count
    dim: Count
    layers: Count
    capacity: Count


class VaultGranted(Message, frozen=True):
    """Vault bridge → server bridge: a vault was forked for you."""


class VaultRefused(Message, frozen=True):
    """Vault bridge → server bridge, before it hangs up: why there is no vault."""

    message: Annotated[str, Meta(max_length=1024)]


class EvidenceRequest(Message, frozen=True):
    """Server bridge → vault bridge, instead of VaultRequest: send your machine's evidence."""

    nonce: Digest


class EvidencePart(Message, frozen=True):
    """Vault bridge → server bridge: a piece of the vault host's evidence, small enough for any link."""

    data: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)]
    last: bool
