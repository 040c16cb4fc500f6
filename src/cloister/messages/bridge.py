"""What the bridges of a network link are told, and what they say to each other first. No prompt is in any of it.

The server bridge runs beside the service, the vault bridge beside the vault (link.network).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.prompts import _Silent
from cloister.messages.vault import CoresDone, WantCores

Role = Literal["server", "vault_host"]
"""The server connects, the vault host listens."""

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count = Annotated[int, Meta(ge=1, le=2**20)]
MAX_PART_BYTES = 1 << 15
MAX_DOCUMENT_BYTES = 1 << 19
Encoded = Annotated[bytes, Meta(min_length=1, max_length=4096)]


class Credentials(_Silent, Struct, frozen=True, forbid_unknown_fields=True):
    """A role's private key and certificate (PEM), and a certificate of the other role (DER).

    The server's is the only one that a vault host accepts. A vault host has another for each of its lives, signed by
    the one here; `pinned` is the SHA-256 of the one whose holder's evidence was checked, and the only one accepted.
    """

    role: Role
    own: Encoded
    peer: Encoded
    pinned: Annotated[bytes, Meta(max_length=32)] = b""


class VaultRequest(Struct, frozen=True, tag="vault_request", forbid_unknown_fields=True):
    """Server bridge → vault bridge, first: what both sides must agree on for answers to be right."""

    version: int
    model: Digest
    heads: Count
    dim: Count
    layers: Count
    capacity: Count


class VaultGranted(Struct, frozen=True, tag="vault_granted", forbid_unknown_fields=True):
    """Vault bridge → server bridge: a vault is yours."""


class VaultRefused(Struct, frozen=True, tag="vault_refused", forbid_unknown_fields=True):
    """Vault bridge → server bridge, before it hangs up: why there is no vault for you."""

    message: Annotated[str, Meta(max_length=1024)]


class EvidenceRequest(Struct, frozen=True, tag="evidence_request", forbid_unknown_fields=True):
    """Server bridge → vault bridge, in place of asking for a vault: what is your machine?"""

    nonce: Digest


class EvidencePart(Struct, frozen=True, tag="evidence_part", forbid_unknown_fields=True):
    """Vault bridge → server bridge: a piece of the vault host's evidence, small enough for any link."""

    data: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)]
    last: bool


class AskVaultHost(Struct, frozen=True, tag="ask_vault_host", forbid_unknown_fields=True):
    """Controller → server bridge: ask for evidence over this nonce, for no vault. VaultHostShown or StartFailed comes
    of it, and the bridge ends."""

    address: Annotated[str, Meta(min_length=1, max_length=1024)]
    credentials: Credentials
    nonce: Digest


class VaultHostShown(Struct, frozen=True, tag="vault_host_shown", forbid_unknown_fields=True):
    """Server bridge → controller: the document, and the SHA-256 of the certificate at the other end of the TLS that it
    came through. Nothing of it was checked."""

    certificate: Digest
    document: Annotated[bytes, Meta(max_length=MAX_DOCUMENT_BYTES)]


class WantEvidence(Struct, frozen=True, tag="want_evidence", forbid_unknown_fields=True):
    """Vault bridge → vault host: the peer asks what this machine is."""

    nonce: Digest


class HostEvidence(Struct, frozen=True, tag="host_evidence", forbid_unknown_fields=True):
    """Vault host → vault bridge: the document, for the peer."""

    document: Annotated[bytes, Meta(max_length=MAX_DOCUMENT_BYTES)]


class Connect(Struct, frozen=True, tag="connect", forbid_unknown_fields=True):
    """Controller → server bridge, with the vault's two descriptors of a link. What follows on the socket is the vault's
    own conversation with the controller, carried through unread."""

    address: Annotated[str, Meta(min_length=1, max_length=1024)]
    credentials: Credentials
    request: VaultRequest
    allow_degraded: bool = False


class Accept(Struct, frozen=True, tag="accept", forbid_unknown_fields=True):
    """Vault host → doorkeeper, with a listening socket: find out who comes. `request` is what a peer must ask for."""

    credentials: Credentials
    request: VaultRequest
    allow_degraded: bool = False


class Arrived(Struct, frozen=True, tag="arrived", forbid_unknown_fields=True):
    """Doorkeeper → vault host, with a bridge's pidfd and our end of the socket to it: its peer knows the key."""


class Admitted(Struct, frozen=True, tag="admitted", forbid_unknown_fields=True):
    """Vault bridge → vault host: the peer asks for what we have. Fork a vault."""


class UseVault(Struct, frozen=True, tag="use_vault", forbid_unknown_fields=True):
    """Vault host → vault bridge, with the service's two descriptors of a link and the control socket of a new vault."""


ToServerBridge = Connect | AskVaultHost
ToVaultBridge = UseVault | HostEvidence
FromVaultBridge = Admitted | WantEvidence | WantCores | CoresDone
