"""How a frontend process starts the service: what to load, and what became of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.generation import Name

Path = Annotated[str, Meta(min_length=1, max_length=4096)]


class Start(Struct, frozen=True, tag="start", forbid_unknown_fields=True):
    """Frontend → service, first of all: the model's folder and the engine's settings as their own JSON."""

    version: int
    name: Name
    path: Path
    settings: Annotated[bytes, Meta(max_length=65536)]


class StartController(Struct, frozen=True, forbid_unknown_fields=True):
    """Command line → controller, as JSON in a memory file: all settings, the model found, and when it all began."""

    settings: str
    name: Name
    path: Path
    begun: float


class StartFailed(Struct, frozen=True, tag="start_failed", forbid_unknown_fields=True):
    """Service → frontend, instead of Ready: why it cannot serve."""

    code: Name
    message: Annotated[str, Meta(max_length=4096)]
    hint: Annotated[str, Meta(max_length=4096)] | None = None
