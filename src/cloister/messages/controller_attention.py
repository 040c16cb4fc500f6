"""Between the controller and an attention process, which knows slots of links and no requests."""

from cloister.messages.controller_service import LinkSlot, Slot
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.types import Message


class AttentionReady(Message, frozen=True):
    """Attention process → controller, once: sealed, and answering."""


class ClearSlot(Message, frozen=True):
    """Controller → attention process: the vault there has ended; no other gets the slot before SlotCleared."""

    slot: Slot


class SlotCleared(Message, frozen=True):
    """Attention process → controller: the slot holds no part of a prompt."""

    slot: Slot


ToAttention = ClearSlot | Ping
FromAttention = StartFailed | LinkSlot | AttentionReady | SlotCleared | Pong
