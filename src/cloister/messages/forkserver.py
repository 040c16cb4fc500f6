"""What the controller and the fork server (the preloaded process all others are forked from) say to each other."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.generation import Name
from cloister.messages.lifecycle import Path, StartFailed

ChildId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Preload(Struct, frozen=True, tag="preload", forbid_unknown_fields=True):
    """Controller → fork server, first, with the sealed weights' descriptor: import, map, be ready to fork."""

    version: int
    name: Name
    path: Path
    settings: Annotated[bytes, Meta(max_length=65536)]
    allow_degraded: bool = False


class Spawn(Struct, frozen=True, tag="spawn", forbid_unknown_fields=True):
    """Controller → fork server: fork a child. Descriptors: its control socket; for a vault also question and answer."""

    child: ChildId
    role: Literal["service", "vault"]


class Preloaded(Struct, frozen=True, tag="preloaded", forbid_unknown_fields=True):
    """Fork server → controller: ready. `missing` names the layers of the sandbox this kernel lacks."""

    heads: int
    dim: int
    layers: int
    partitionable: bool
    missing: tuple[str, ...] = ()


class Spawned(Struct, frozen=True, tag="spawned", forbid_unknown_fields=True):
    """Fork server → controller, with a pidfd: the child exists. It says itself that it is ready, or hangs up."""

    child: ChildId
    pid: int


ToForkServer = Preload | Spawn
FromForkServer = StartFailed | Preloaded | Spawned
