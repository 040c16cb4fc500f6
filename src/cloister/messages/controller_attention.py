"""Between the controller and an attention process, which knows places of links and no requests."""

from cloister.messages.controller_service import LinkPlace, Place
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.types import Message


class AttentionReady(Message, frozen=True):
    """Attention process → controller, once: sealed, and answering."""

    version: int


class ClearPlace(Message, frozen=True):
    """Controller → attention process: the vault there has ended; no other gets the place before PlaceCleared."""

    place: Place


class PlaceCleared(Message, frozen=True):
    """Attention process → controller: the place holds no part of a prompt."""

    place: Place


ToAttention = ClearPlace | Ping
FromAttention = StartFailed | LinkPlace | AttentionReady | PlaceCleared | Pong
