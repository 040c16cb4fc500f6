"""What the controller and the unsealer, which decrypts a provider's weights into memory, say to each other."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.generation import _Discreet
from cloister.messages.lifecycle import Path, StartFailed


class Unseal(_Discreet, Struct, frozen=True, tag="unseal", forbid_unknown_fields=True):
    """Controller → unsealer, first: decrypt this file, which this provider must have signed, into memory."""

    version: int
    path: Path
    provider: Annotated[str, Meta(max_length=1024)]
    content_key: Annotated[bytes, Meta(min_length=32, max_length=32)]


class Unsealed(Struct, frozen=True, tag="unsealed", forbid_unknown_fields=True):
    """Unsealer → controller, with the descriptor of a folder that lies in memory alone: the model is whole in there."""


class Packed(Struct, frozen=True, tag="packed", forbid_unknown_fields=True):
    """Controller → unsealer: nobody needs the parameters' files any more."""


class Locked(Struct, frozen=True, tag="locked", forbid_unknown_fields=True):
    """Unsealer → controller, last: the parameters' files are gone, and nobody can write into the folder."""


FromUnsealer = StartFailed | Unsealed | Locked
ToUnsealer = Unseal | Packed
