"""Where things are in a mailbox, one for each attention process, as link.cuh reads it. Nothing is mapped here."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from cloister.compute.base import AttentionShape, CacheShape
from cloister.compute.gpu.queries import ENTRY, GROUP_TOKENS, MOST_VALUES, RECORDED, KeyShape, Times
from cloister.compute.layout import ASKS, BLOCK_TOKENS, RemoteRows
from cloister.placement import Placement

PAGE = 4096
WORD = 8
BEFORE = 4  # words before the rotation: the length; whether what is asked is recorded; two that are unused
MOST_GROUPS = 255  # a ticket counts the tasks of a prompt, four in each, in twelve bits (answer.cuh)


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """What is exposed, slot by slot; secret numbers and records of what was asked (queries.py); the cache. Prompts may
    have blocks in common."""

    blocks: int
    model: CacheShape
    block_bytes: int
    slots: int = 1

    @property
    def words(self) -> int:
        return BEFORE + 2 * self.model.dim + self.blocks

    @property
    def keys(self) -> KeyShape:
        return KeyShape(self.model.layers, self.model.kv_heads, self.groups)

    @property
    def keys_at(self) -> int:
        return -(-4 * self.words * self.slots // WORD) * WORD

    @property
    def records_at(self) -> int:
        return self.keys_at + WORD * self.keys.words

    @property
    def header(self) -> int:
        return -(-(self.records_at + WORD * ENTRY * (RECORDED + 1) * self.slots) // PAGE) * PAGE

    @property
    def size(self) -> int:
        return self.header + self.blocks * self.block_bytes

    @property
    def groups(self) -> int:
        return min(MOST_GROUPS, -(-self.blocks * BLOCK_TOKENS // GROUP_TOKENS))

    def written(
        self,
        blocks: Sequence[int],
        start: int,
        end: int,
        rotation: tuple[torch.Tensor, torch.Tensor],
        *,
        recorded: bool = True,
    ) -> torch.Tensor:
        length = end - start
        fits = 1 <= length <= self.groups * GROUP_TOKENS and -(-length // BLOCK_TOKENS) <= len(blocks) <= self.blocks
        if not fits or not 0 <= min(blocks) <= max(blocks) < self.blocks:
            raise ValueError("the span does not lie in these blocks")
        words = torch.zeros(self.words, dtype=torch.int32)
        words[0], words[1] = length, recorded
        if len(rotation[0]):
            turned = torch.cat([each.flatten() for each in rotation]).float().cpu().contiguous()
            words[BEFORE : BEFORE + 2 * self.model.dim] = turned.view(torch.int32)
        words[BEFORE + 2 * self.model.dim :][: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        return words


GATE_BYTES = 64
GATE_WORD = 4  # where the gate is in a layer's line; before it: that the layer begins, or the step's number

EXPOSED = 32  # slots of each vault: for all sequences of one request (levels.MOST_FAKES)
# blocks of `merge_with_vaults` at once: eight on each of 132 processors leave registers for one that answers
MOST_WAITING = 1024
# in a step of more rows attention processes come for every layer: its products leave no room for blocks that stay
STAYING_ROWS = 64
MOST_PATIENCE_MS = 200
MOST_ASKED = 128  # rows of a step that asks: each thread of a block that answers looks at one


@dataclass(frozen=True, slots=True)
class MailboxSlots:
    """Each attention process has one mailbox, in which each of its vaults has `each` slots, one for a prompt."""

    placement: Placement
    each: int = EXPOSED

    @property
    def slots(self) -> int:
        return len(self.placement.slots_of(0)) * self.each

    def at(self, link_slot: int) -> tuple[int, range]:
        mailbox, index = self.placement.process_of(link_slot)
        return mailbox, range(index * self.each, (index + 1) * self.each)


def percentage_of(processes: int) -> int:
    """Twice an even share of the processors, at least a fourth: a context holds memory for each of them."""
    return max(25, min(100, 200 // max(1, processes)))


def most_rows(kv_heads: int) -> int:
    """Blocks that wait for answers, one for each row and KV head, leave room for the blocks that give them."""
    return min(MOST_ASKED, max(1, MOST_WAITING // kv_heads))


def partition_refusal(model: AttentionShape) -> str:
    if any(model.windows):
        return "A model that looks back a limited way cannot be partitioned on a GPU."
    if model.queries_per_kv_head * model.cache_shape.dim > MOST_VALUES:
        return "A model with this many queries for one KV head cannot be partitioned on a GPU."
    return ""


@dataclass(frozen=True, slots=True)
class MailboxShape:
    users: int
    layers: int
    heads: int
    dim: int

    @classmethod
    def of(cls, model: AttentionShape, users: int) -> "MailboxShape":
        return cls(users, model.cache_shape.layers, model.heads, model.cache_shape.dim)

    @property
    def asked(self) -> int:
        """Where the list of asked slots begins: behind the gates, and one word more, the number of the step."""
        return (self.layers + 1) * GATE_BYTES

    @property
    def gates(self) -> int:
        return -(-(self.asked + MOST_ASKED * WORD) // PAGE) * PAGE

    @property
    def box(self) -> int:
        return -(-self.heads * (2 * self.dim + 2) * WORD // PAGE) * PAGE

    @property
    def size(self) -> int:
        return self.gates + self.users * self.box

    def boxes(self, address: int) -> range:
        first = address + self.gates
        return range(first, first + self.users * self.box, self.box)


Boxes = tuple[int, range]  # the address of a mailbox, and a vault's slots in it


def aimed(
    shape: MailboxShape, boxes: Mapping[int, Boxes], remotes: Sequence[RemoteRows], rows: int
) -> tuple[torch.Tensor, dict[int, str]]:
    """Each row's box, gates, addresses (0: none), slot; failed links. A second opening counts for the next step."""
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
    """What `aimed` found for the last step: the next step mostly asks the same vaults, for the next tokens."""

    def __init__(self, shape: MailboxShape, boxes: Callable[[], Mapping[int, Boxes]]) -> None:
        self._shape, self._boxes = shape, boxes
        self._key: object = None
        self._found = torch.empty(0)
        self._times = Times()

    def forget(self, link: int) -> None:
        """Before it is attached, and when it is detached."""
        self._key = None
        self._times.forget(link)

    def of(self, remotes: Sequence[RemoteRows], rows: int) -> tuple[torch.Tensor, dict[int, str]]:
        asked = ((remote.link, *remote.rows, *(slot for slot, _ in remote.asks)) for remote in remotes)
        failed = dict[int, str]()
        if (key := (rows, *asked)) != self._key:
            self._found, failed = aimed(self._shape, self._boxes(), remotes, rows)
            self._key = None if failed else key
            self._times.aim(remotes)
        asks = self._found.clone()
        asks[ASKS - 1] |= self._times.words(remotes, rows)
        return asks, failed
