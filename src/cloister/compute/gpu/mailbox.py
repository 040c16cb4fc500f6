"""Where things are in a mailbox, one for each process that answers: gates, one for each layer, and a box for each slot;
who sits where; and which box each row of a step asks.

As link.cuh reads it. Addresses are numbers here: nothing is mapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from cloister.compute.base import AttentionShape
from cloister.compute.layout import RemoteRows

PAGE = 4096
GATE_BYTES = 64
WORD = 8
MOST_QUERIES = 4 * 128
"""Values of the queries for one KV head: a block's threads hold four each."""


CLIENTS = 46
"""Of MPS, which has 48: the service, attention processes and vaults."""
SLOTS = 16
"""In a mailbox whose vault answers itself."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Who has which slots of which mailbox: a vault that answers itself has one of its own; else `attention` processes
    have one each, and vaults a slot in these, those of neighbouring numbers in different ones."""

    attention: int
    places: int
    """Vaults at once."""

    @classmethod
    def beside(cls, attention: int) -> Seats:
        """For as many vaults as can compute at once."""
        return cls(attention, CLIENTS - 1 - attention)

    @property
    def mailboxes(self) -> int:
        return self.attention or self.places

    @property
    def slots(self) -> int:
        return -(-self.places // self.attention) if self.attention else SLOTS

    def at(self, place: int) -> tuple[int, range]:
        """A place's mailbox, and its slots there."""
        if not 0 <= place < self.places:
            raise ValueError("there is no such place")
        slot, mailbox = divmod(place, self.mailboxes)
        return mailbox, range(slot, slot + 1) if self.attention else range(SLOTS)


def partition_refusal(model: AttentionShape) -> str:
    """Why a model's attention cannot be partitioned on a GPU; empty if it can."""
    if any(model.windows):
        return "A model that looks back a limited way cannot be partitioned on a GPU."
    if model.queries_per_kv_head * model.cache_shape.dim > MOST_QUERIES:
        return "A model with so many queries for one KV head cannot be partitioned on a GPU."
    return ""


@dataclass(frozen=True, slots=True)
class MailboxShape:
    """The sizes of a mailbox with so many slots, `users`, for a model."""

    users: int
    layers: int
    heads: int
    dim: int

    @classmethod
    def of(cls, model: AttentionShape, users: int) -> MailboxShape:
        return cls(users, model.cache_shape.layers, model.heads, model.cache_shape.dim)

    @property
    def gates(self) -> int:
        """The gates, and one word more: the number of the step."""
        return -(-(self.layers + 1) * GATE_BYTES // PAGE) * PAGE

    @property
    def box(self) -> int:
        return -(-(self.heads * (2 * self.dim + 2) + 1) * WORD // PAGE) * PAGE

    @property
    def size(self) -> int:
        return self.gates + self.users * self.box

    def boxes(self, address: int) -> list[int]:
        """Where each user's box is in a mailbox that is mapped at this address."""
        return [address + self.gates + user * self.box for user in range(self.users)]


Seat = tuple[int, range]
"""The address of a mailbox, and slots in it."""


def aimed(
    shape: MailboxShape, seats: Mapping[int, Seat], remotes: Sequence[RemoteRows], rows: int
) -> tuple[torch.Tensor, dict[int, str]]:
    """Each row's box and which gates the step opens, as [2, rows] of addresses, 0 for none; and which links cannot be
    asked.

    A gate is opened once, however many rows and links ask there: it is closed when the answers begin, and a second
    opening would count for the next step. A box holds one row.
    """
    asks, failed, opened = torch.zeros(2, rows, dtype=torch.int64), {}, set()
    for remote in remotes:
        slots = remote.asks[:, 0].tolist()
        if remote.link not in seats:
            failed[remote.link] = "vault_lost"
            continue
        address, own = seats[remote.link]
        if len(set(slots)) < len(slots) or not 0 <= min(slots) <= max(slots) < len(own):
            failed[remote.link] = "link_malformed"
            continue
        boxes = shape.boxes(address)
        asks[0, remote.rows.long()] = torch.tensor([boxes[own[slot]] for slot in slots])
        if address not in opened:
            opened.add(address)
            asks[1, int(remote.rows[0])] = address
    return asks, failed
