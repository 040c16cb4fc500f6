"""What the controller and an attention process say to each other. It hears of places, never of requests."""

from __future__ import annotations

from msgspec import Struct

from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.service import LinkPlace, Place


class AttentionReady(Struct, frozen=True, tag="attention_ready", forbid_unknown_fields=True):
    """Attention process → controller, once: sealed, and answering."""

    version: int


class ClearPlace(Struct, frozen=True, tag="clear_place", forbid_unknown_fields=True):
    """Controller → attention process: the vault at this place has ended. Nobody else has the place before."""

    place: Place


class PlaceCleared(Struct, frozen=True, tag="place_cleared", forbid_unknown_fields=True):
    """Attention process → controller: nothing is left there of anybody's prompt."""

    place: Place


ToAttention = ClearPlace | Ping
FromAttention = StartFailed | LinkPlace | AttentionReady | PlaceCleared | Pong
