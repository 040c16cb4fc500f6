"""What a service asks on a GPU, and whether it is what its vault would ask (queries.cuh). Nothing is mapped here.

An attention process adds a hash of each query, of the words that it read itself, to a record in the vault's arena. The
vault computes the same sum from the queries that it would ask, with its secret numbers. For which token a query is,
only the service says: a word that does not tell the truth puts the query where it does not belong."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import randbelow

import numpy as np
import torch

from cloister.compute.layout import RemoteRows

PRIME = 2**61 - 1
TIMES = 32  # that an index is asked for, before they are counted from the beginning
RECORDED = 2048  # indices of an answer
ENTRY = 3  # words of a record, for each index: the sum's halves, and in which ways it was asked
HALF = 32
SLOT_BITS, TIME_BITS = 12, 5
MOST_VALUES = 512  # of a KV head's queries: a block's threads hold four each
MOST_COMPARED = 4096  # rows of a pass
GROUP_TOKENS, PIECE, TASKS = 512, 64, 4  # of a prompt, as attention cuts it (attention.cuh)
NEVER = 2**31  # more than any answer may ask


@dataclass(frozen=True, slots=True)
class KeyShape:
    layers: int
    kv_heads: int
    groups: int

    @property
    def words(self) -> int:
        return self.kv_heads * (MOST_VALUES + 1) + TIMES * self.layers + self.groups * (TASKS + 1)


def items_of(length: int) -> tuple[int, int]:
    """Tasks and groups: one of them is how a prompt is shared out, a block each, for a whole step."""
    whole, rest = divmod(length, GROUP_TOKENS)
    return max(1, whole * TASKS + min(TASKS, -(-rest // PIECE))), max(1, -(-length // GROUP_TOKENS))


def _drawn(count: int) -> list[int]:
    return [1 + randbelow(PRIME - 1) for _ in range(count)]


class Keys:
    """A vault's secret numbers. That of the first time is 1, so that its own sums hold for any time."""

    def __init__(self, shape: KeyShape) -> None:
        self._shape = shape
        self.values, self.heads = _drawn(shape.kv_heads * MOST_VALUES), _drawn(shape.kv_heads)
        self.times, self.layers = [1, *_drawn(TIMES - 1)], _drawn(shape.layers)
        self.items = _drawn(shape.groups * (TASKS + 1))

    @property
    def words(self) -> torch.Tensor:
        """As the kernels read them."""
        both = [time * layer % PRIME for time in self.times for layer in self.layers]
        return torch.tensor([*self.values, *self.heads, *both, *self.items], dtype=torch.int64)

    def factors(self, length: int) -> tuple[int, int]:
        """By which a vault's own sum is multiplied for a prompt, shared out as tasks or groups. One task is a group."""
        tasks, groups = items_of(length)
        first = self._shape.groups * TASKS
        return sum(self.items[:tasks]) if tasks > 1 else 0, sum(self.items[first : first + groups])

    def sum_of(self, ways: int, factors: tuple[int, int]) -> int:
        """`ways`: a bit for each time that tasks were asked; above them, for each that groups were."""
        asked = (way for way in range(2 * TIMES) if ways >> way & 1)
        return sum(self.times[way % TIMES] * factors[way // TIMES] for way in asked) % PRIME


def joined(halves: Sequence[int]) -> int:
    return (halves[0] + (halves[1] << HALF)) % PRIME


@dataclass(slots=True)
class Record:
    """Of one slot: what was compared so far. All of it is looked at again each time: an index may be asked again."""

    factors: tuple[int, int]
    own: dict[int, int] = field(default_factory=dict)  # sums by index
    seen: torch.Tensor = field(default_factory=lambda: torch.zeros(RECORDED + 1, ENTRY, dtype=torch.int64))

    def differing(self, keys: Keys, entries: torch.Tensor) -> list[int]:
        """Indices whose entries are not what this vault asks for, each at most once at each time."""
        asked, changed = entries.any(1).tolist(), (entries != self.seen).any(1).tolist()
        looked = [index for index in self.own if changed[index] or not asked[index]]
        return [index for index in looked if not self._is_right(keys, index, entries[index])]

    def _is_right(self, keys: Keys, index: int, entry: torch.Tensor) -> bool:
        *halves, ways = entry.tolist()
        right = self.own[index] * keys.sum_of(ways % 2**64, self.factors) % PRIME
        if same := bool(ways) and joined(halves) == right:
            self.seen[index] = entry
        return same


def asked_in(entries: torch.Tensor) -> int:
    """One more than the greatest index that was asked. What is asked behind the last one comes after that."""
    asked = entries.any(1).nonzero().flatten()
    if not len(asked):
        return 0
    last = int(asked[-1])
    return last + 1 if last < RECORDED or bool(entries[RECORDED - 1].any()) else NEVER


class Times:
    """The service's side: how often each slot's answer began again, after a preemption or as another request's."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # by link and slot: the time, and the next index
        self._slots: list[tuple[int, int]] = []  # of the step at hand
        self._rows = self._time = self._next = np.empty(0, dtype=np.int64)

    def aim(self, remotes: Sequence[RemoteRows]) -> None:
        """At others than in the last step."""
        self._keep()
        self._slots = [(remote.link, slot) for remote in remotes for slot, _ in remote.asks]
        self._rows = np.array([row for remote in remotes for row in remote.rows], dtype=np.int64)
        known = [self._known.get(slot, (0, 0)) for slot in self._slots]
        self._time, self._next = np.array(known, dtype=np.int64).reshape(-1, 2).T

    def words(self, remotes: Sequence[RemoteRows], rows: int) -> torch.Tensor:
        """For each row what its word in the list says beside its slot."""
        asked = (index for remote in remotes for _, index in remote.asks)
        index = np.fromiter(asked, np.int64, len(self._slots))
        self._time = (self._time + (index < self._next)) % TIMES
        self._next = index + 1
        words = np.zeros(rows, dtype=np.int64)
        words[self._rows] = (np.minimum(index, RECORDED) << TIME_BITS | self._time) << SLOT_BITS
        return torch.from_numpy(words)

    def forget(self, link: int) -> None:
        self.aim(())
        self._known = {slot: known for slot, known in self._known.items() if slot[0] != link}

    def _keep(self) -> None:
        self._known |= zip(self._slots, zip(self._time.tolist(), self._next.tolist(), strict=True), strict=True)
