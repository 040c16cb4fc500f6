"""What the bridges of a network link are told, and what they say to each other first. No prompt is in any of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.vault import FloorDone, TakeFloor, WantFloor

Secret = Annotated[bytes, Meta(min_length=32, max_length=32)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count = Annotated[int, Meta(ge=1, le=2**20)]


class _Silent:
    """Its repr says nothing of its fields: a key is among them."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Hail(Struct, frozen=True, tag="hail", forbid_unknown_fields=True):
    """Near bridge → far bridge, first on the secure channel: what both sides must agree on for answers to be right."""

    version: int
    model: Digest
    heads: Count
    dim: Count
    layers: Count
    capacity: Count


class Welcome(Struct, frozen=True, tag="welcome", forbid_unknown_fields=True):
    """Far bridge → near bridge: a vault is yours."""


class Unwelcome(Struct, frozen=True, tag="unwelcome", forbid_unknown_fields=True):
    """Far bridge → near bridge, before it hangs up: why there is no vault for you."""

    message: Annotated[str, Meta(max_length=1024)]


class Cross(_Silent, Struct, frozen=True, tag="cross", forbid_unknown_fields=True):
    """Controller → near bridge, with the vault's two descriptors of a link. What follows on the socket is the vault's
    own conversation with the controller, carried through unread."""

    address: Annotated[str, Meta(min_length=1, max_length=1024)]
    secret: Secret
    hail: Hail
    allow_degraded: bool = False


class Receive(_Silent, Struct, frozen=True, tag="receive", forbid_unknown_fields=True):
    """Outpost → far bridge, with a connection: find out who it is. `hail` is what the peer must say."""

    secret: Secret
    hail: Hail
    allow_degraded: bool = False


class Admitted(Struct, frozen=True, tag="admitted", forbid_unknown_fields=True):
    """Far bridge → outpost: it knows the secret and wants what we have. Fork a vault."""


class Lend(Struct, frozen=True, tag="lend", forbid_unknown_fields=True):
    """Outpost → far bridge, with the service's two descriptors of a link and the control socket of a fresh vault."""


ToNear = Cross
ToFar = Receive | Lend | TakeFloor
FromFar = Admitted | WantFloor | FloorDone
