"""Where things are in a mailbox, of which each attention process has one: a word for each layer whose queries will
come, a step's number and gate, which slots it asks, and a box for each slot; and which box each row of a step asks.

As link.cuh reads it. Addresses are numbers here: nothing is mapped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from cloister.compute.base import AttentionShape
from cloister.compute.layout import ASKS, RemoteRows
from cloister.placement import Placement

PAGE = 4096
GATE_BYTES = 64
GATE_WORD = 4
"""Where the gate is in a layer's line, and behind them in the step's. Before it: that the layer begins; the number."""
WORD = 8
MOST_QUERIES = 4 * 128
"""Values of the queries for one KV head: a block's threads hold four each."""


EXPOSED = 32
"""Slots of each vault: for all sequences of one request (levels.MOST_FAKES)."""
MOST_WAITING = 1024
"""Blocks of `merge_with_vaults` at once: eight on each of 132 processors leave registers for one that answers."""
STAYING_ROWS = 64
"""In a step of more rows attention processes come for every layer: its products leave no room for blocks that stay."""
MOST_PATIENCE_MS = 200
MOST_ASKED = 128
"""Rows of a step that asks, at most: each thread of a block that answers looks at one."""


@dataclass(frozen=True, slots=True)
class MailboxSlots:
    """Which slots of which mailbox a vault has. Each attention process has one mailbox, in which each of its vaults has
    `each` slots: one for every prompt that it exposes."""

    placement: Placement
    each: int = EXPOSED

    @property
    def slots(self) -> int:
        """Of a mailbox: as many in each, though some attention processes have a vault less than others."""
        return len(self.placement.slots_of(0)) * self.each

    def at(self, link_slot: int) -> tuple[int, range]:
        """The number of the mailbox, and the slots there."""
        mailbox, index = self.placement.process_of(link_slot)
        return mailbox, range(index * self.each, (index + 1) * self.each)


def percentage_of(processes: int) -> int:
    """The share of the GPU's processors that each attention process may use: a context holds memory for every one of
    them. Twice an even share, so that all are used where some processes have more to do, and no less than a fourth: a
    smaller one saves little."""
    return max(25, min(100, 200 // max(1, processes)))


def most_rows(kv_heads: int) -> int:
    """Rows of a step that asks. Blocks that wait for answers, one for each row and KV head, leave room for the blocks
    that give them."""
    return min(MOST_ASKED, max(1, MOST_WAITING // kv_heads))


def partition_refusal(model: AttentionShape) -> str:
    """Why a model's attention cannot be partitioned on a GPU; empty if it can."""
    if any(model.windows):
        return "A model that looks back a limited way cannot be partitioned on a GPU."
    if model.queries_per_kv_head * model.cache_shape.dim > MOST_QUERIES:
        return "A model with this many queries for one KV head cannot be partitioned on a GPU."
    return ""


@dataclass(frozen=True, slots=True)
class MailboxShape:
    """The sizes of a mailbox with `users` slots for a model."""

    users: int
    layers: int
    heads: int
    dim: int

    @classmethod
    def of(cls, model: AttentionShape, users: int) -> MailboxShape:
        return cls(users, model.cache_shape.layers, model.heads, model.cache_shape.dim)

    @property
    def asked(self) -> int:
        """Where the list of asked slots begins: behind the gates, and one word more, the number of the step."""
        return (self.layers + 1) * GATE_BYTES

    @property
    def gates(self) -> int:
        """The size of all that is before the boxes."""
        return -(-(self.asked + MOST_ASKED * WORD) // PAGE) * PAGE

    @property
    def box(self) -> int:
        return -(-self.heads * (2 * self.dim + 2) * WORD // PAGE) * PAGE

    @property
    def size(self) -> int:
        return self.gates + self.users * self.box

    def boxes(self, address: int) -> range:
        """Where each user's box is in a mailbox that is mapped at this address."""
        first = address + self.gates
        return range(first, first + self.users * self.box, self.box)


Boxes = tuple[int, range]
"""The address of a mailbox, and a vault's slots in it."""


def aimed(
    shape: MailboxShape, boxes: Mapping[int, Boxes], remotes: Sequence[RemoteRows], rows: int
) -> tuple[torch.Tensor, dict[int, str]]:
    """For each row its box, the gates it opens and where in the mailbox its slot is written, addresses, 0 for none; and
    the slot: [ASKS, rows]. And which links cannot be asked.

    A gate is opened once, however many rows and links ask there: it is closed when the answers begin, and a second
    opening would count for the next step. A box holds one row.
    """
    box, gates, listing, asked = ([0] * rows for _ in range(ASKS))
    failed, listed = dict[int, str](), Counter[int]()
    for remote in remotes:
        slots = [slot for slot, _ in remote.asks]
        if remote.link not in boxes:
            failed[remote.link] = "vault_lost"
            continue
        address, own = boxes[remote.link]
        if len(set(slots)) < len(slots) or not 0 <= min(slots) <= max(slots) < len(own):
            failed[remote.link] = "link_malformed"
            continue
        its_boxes, first = shape.boxes(address), address + shape.asked
        if address not in listed:
            gates[remote.rows[0]] = address
        for row, slot in zip(remote.rows, (own[slot] for slot in slots), strict=True):
            box[row], asked[row] = its_boxes[slot], slot
            listing[row] = first + listed[address] * WORD
            listed[address] += 1
    asks = torch.tensor([box, gates, listing, asked], dtype=torch.int64)
    return asks, failed


class Aims:
    """What `aimed` found for the last step: the next step mostly asks the same vaults."""

    def __init__(self, shape: MailboxShape, boxes: Callable[[], Mapping[int, Boxes]]) -> None:
        self._shape, self._boxes = shape, boxes
        self._key: object = None
        self._found = torch.empty(0)

    def forget(self) -> None:
        """A link was attached or detached."""
        self._key = None

    def of(self, remotes: Sequence[RemoteRows], rows: int) -> tuple[torch.Tensor, dict[int, str]]:
        asked = ((remote.link, *remote.rows, *(slot for slot, _ in remote.asks)) for remote in remotes)
        failed = dict[int, str]()
        if (key := (rows, *asked)) != self._key:
            self._found, failed = aimed(self._shape, self._boxes(), remotes, rows)
            self._key = None if failed else key
        return self._found.clone(), failed
