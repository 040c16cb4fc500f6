"""What a service asked on a GPU against what its vault would ask: the arithmetic, beside a service that cheats."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import cloister.compute.gpu
from cloister.compute.base import CacheShape
from cloister.compute.cpu.library import find_compiler
from cloister.compute.gpu import queries
from cloister.compute.gpu.mailbox import ArenaShape
from cloister.compute.gpu.queries import (
    ENTRY,
    HALF,
    MOST_VALUES,
    NEVER,
    PRIME,
    RECORDED,
    SLOT_BITS,
    TIME_BITS,
    TIMES,
    Keys,
    KeyShape,
    Record,
    Times,
    asked_in,
    items_of,
)
from cloister.compute.layout import RemoteRows
from tests.compute.without_cuda import imported

FOLDER = Path(cloister.compute.gpu.__path__[0])
SHAPE = KeyShape(layers=3, kv_heads=2, groups=3)
LENGTH, VALUES = 700, 4  # of the prompt; of a KV head's queries here
Words = list[list[list[int]]]  # by layer and KV head
Alter = Callable[[int, int, int, list[int]], list[int]]


def asked_for(index: int) -> Words:
    draw = random.Random(index)
    return [[[draw.randrange(2**20, 2**31) for _ in range(VALUES)] for _ in range(2)] for _ in range(3)]


def plain(keys: Keys, layer: int, kv: int, words: list[int]) -> int:
    sums = (keys.values[kv * MOST_VALUES + at] * word for at, word in enumerate(words))
    return keys.layers[layer] * (keys.heads[kv] + sum(sums))


class Node:
    """A vault, and who answers for it: in plain Python what the kernels compute."""

    def __init__(self, length: int = LENGTH) -> None:
        self.keys, self.length = Keys(SHAPE), length
        self.entries = torch.zeros(RECORDED + 1, ENTRY, dtype=torch.int64)
        self.record = Record(self.keys.factors(length))

    def ask(self, index: int, *, time: int = 0, fine: bool = True, alter: Alter = lambda *given: given[-1]) -> None:
        tasks, groups = items_of(self.length)
        fine = fine and tasks > 1
        for item in range(tasks if fine else groups):
            for layer, of_layer in enumerate(asked_for(index)):
                for kv, words in enumerate(of_layer):
                    self.add(index, time, fine, (item, layer, kv), alter(item, layer, kv, list(words)))

    def add(self, index: int, time: int, fine: bool, place: tuple[int, int, int], words: list[int]) -> None:
        item, layer, kv = place
        number = item if fine else SHAPE.groups * 4 + item
        hashed = self.keys.times[time] * self.keys.items[number] * plain(self.keys, layer, kv, words) % PRIME
        entry = self.entries[min(index, RECORDED)]
        entry[0] += hashed % 2**HALF
        entry[1] += hashed >> HALF
        if place == (0, 0, 0):
            entry[2] |= signed(1 << (time + (0 if fine else TIMES)))

    def compare(self, *indices: int) -> list[int]:
        for index in indices:
            layers = enumerate(asked_for(index))
            own = sum(plain(self.keys, layer, kv, words) for layer, of in layers for kv, words in enumerate(of))
            self.record.own[index] = own % PRIME
        return self.record.differing(self.keys, self.entries)


def signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def add_to_first(amount: Callable[[int], int], at: int = 1) -> Alter:
    """A number of one layer's query, other for each item."""
    return lambda item, layer, kv, words: [words[0] + amount(item), *words[1:]] if (layer, kv) == (at, 0) else words


@pytest.mark.parametrize("length", [1, 64, 65, 512, 513, 700, 1500])
@pytest.mark.parametrize("fine", [True, False])
def test_an_honest_service_asked_the_same_however_a_prompt_is_shared_out(length: int, fine: bool) -> None:
    node = Node(length)
    for index in range(4):
        node.ask(index, fine=fine)
    assert node.compare(0, 1) == [] == node.compare(2, 3)
    assert asked_in(node.entries) == 4


def test_one_other_bit_one_more_and_one_less_are_seen() -> None:
    for at in range(SHAPE.layers):
        node = Node()
        node.ask(0, alter=add_to_first(lambda item: 1, at))
        assert node.compare(0) == [0]
    node = Node()
    node.ask(0, alter=lambda item, layer, kv, words: [words[1], words[0], *words[2:]])
    node.ask(1)
    assert node.compare(0, 1, 2) == [0, 2], "two that changed places; one that was never asked"
    node.ask(5)
    assert asked_in(node.entries) == 6


def test_what_one_item_read_is_not_hidden_by_what_others_read() -> None:
    """With numbers of items in a row, 1, 2, 3, …, this difference would cancel out."""
    hidden = add_to_first(lambda item: (1000, -2000, 1000, 0, 0, 0, 0)[item])
    node = Node()
    node.ask(0, alter=hidden)
    assert node.compare(0) == [0]
    foolish = Node()
    foolish.keys.items[:] = range(1, 1 + len(foolish.keys.items))
    foolish.record = Record(foolish.keys.factors(LENGTH))
    foolish.ask(0, alter=hidden)
    assert foolish.compare(0) == []


def test_what_is_asked_twice_at_one_time_is_seen_even_if_it_cancels_out() -> None:
    node = Node()
    for _ in range(2):
        node.ask(0)
    assert node.compare(0) == [0]
    halves = Node()  # the first and the second query add up to the honest one; only their number does not
    halves.ask(0, alter=lambda item, layer, kv, words: [word // 2 for word in words])
    halves.ask(0, alter=lambda item, layer, kv, words: [word - word // 2 for word in words])
    assert halves.compare(0) == [0]
    halves.keys.heads[:] = [0] * SHAPE.kv_heads
    without = Node()
    without.keys.heads[:] = [0] * SHAPE.kv_heads
    without.ask(0, alter=lambda item, layer, kv, words: [word // 2 for word in words])
    without.ask(0, alter=lambda item, layer, kv, words: [word - word // 2 for word in words])
    assert without.compare(0) == [], "which is why there is a number of its own for that"


def test_an_item_or_a_layer_that_is_left_out_or_shared_out_otherwise_is_seen() -> None:
    for left_out in ((0, 1, 1), (5, 0, 0), (0, 0, 0)):
        node = Node()
        for item in range(6):
            for layer, of in enumerate(asked_for(0)):
                for kv, words in enumerate(of):
                    if (item, layer, kv) != left_out:
                        node.add(0, 0, True, (item, layer, kv), words)
        assert node.compare(0) == [0] and asked_in(node.entries) == 1
    mixed = Node()
    mixed.ask(0)
    mixed.add(0, 0, False, (0, 0, 0), asked_for(0)[0][0])
    assert mixed.compare(0) == [0]


def test_the_same_may_be_asked_again_at_another_time_and_nothing_else() -> None:
    node = Node()
    for index in range(4):
        node.ask(index)
    assert node.compare(0, 1) == []
    for time, fine in ((1, True), (5, False), (TIMES - 1, False)):
        node.ask(0, time=time, fine=fine)
        node.ask(2, time=time, fine=fine)
    assert node.compare(2, 3) == []
    node.ask(1, time=1, alter=add_to_first(lambda item: 1))
    assert node.compare() == [1], "though it was compared before"


def test_what_is_behind_all_that_is_recorded_is_known_to_have_been_asked() -> None:
    node = Node(64)
    node.ask(RECORDED - 1)
    assert asked_in(node.entries) == RECORDED
    node.ask(RECORDED + 7)
    assert asked_in(node.entries) == RECORDED + 1
    jumped = Node(64)
    jumped.ask(RECORDED)
    assert asked_in(jumped.entries) == NEVER, "no answer begins there"
    assert asked_in(torch.zeros(RECORDED + 1, ENTRY, dtype=torch.int64)) == 0


def test_secret_numbers_are_drawn_for_each_vault_and_fit_the_kernels() -> None:
    one, other = Keys(SHAPE), Keys(SHAPE)
    words = one.words
    assert len(words) == SHAPE.words and int(words.min()) > 0 and int(words.max()) < PRIME
    assert not set(words.tolist()) & set(other.words.tolist())
    layers = words[2 * (MOST_VALUES + 1) :][: TIMES * 3].view(TIMES, 3).tolist()
    assert layers == [[time * layer % PRIME for layer in one.layers] for time in one.times] and layers[0] == one.layers


def remotes(*asks: tuple[int, int, int]) -> tuple[RemoteRows, ...]:
    return tuple(RemoteRows(link, [row], [(slot, index)]) for row, (link, slot, index) in enumerate(asks))


def said(times: Times, *asks: tuple[int, int, int]) -> list[tuple[int, int]]:
    words = times.words(remotes(*asks), len(asks) + 1).tolist()
    assert words.pop() == 0, "a row that asks nobody"
    return [(word >> SLOT_BITS & (TIMES - 1), word >> (SLOT_BITS + TIME_BITS)) for word in words]


def test_a_service_says_for_which_token_it_asks_and_how_often_it_began_anew() -> None:
    times = Times()
    times.aim(remotes((7, 0, 0), (7, 1, 0)))
    assert said(times, (7, 0, 0), (7, 1, 4)) == [(0, 0), (0, 4)]
    assert said(times, (7, 0, 1), (7, 1, 5)) == [(0, 1), (0, 5)]
    assert said(times, (7, 0, 0), (7, 1, RECORDED + 9)) == [(1, 0), (0, RECORDED)], "preempted; a long answer"
    times.aim(remotes((7, 1, 0), (9, 0, 0)))
    assert said(times, (7, 1, 0), (9, 0, 0)) == [(1, 0), (0, 0)], "another step's slots are not forgotten"
    times.forget(9)
    times.aim(remotes((9, 0, 0), (7, 0, 1)))
    assert said(times, (9, 0, 0), (7, 0, 1)) == [(0, 0), (1, 1)]
    for _ in range(TIMES - 1):
        last = said(times, (9, 0, 1), (7, 0, 1))
    assert last[1] == (0, 1) and max(last[0]) < TIMES


def defined() -> dict[str, str]:
    return dict(re.findall(r"^#define (\w+) (.+?)(?: */\*.*)?$", (FOLDER / "queries.cuh").read_text(), re.MULTILINE))


def test_the_sizes_are_those_of_the_sources() -> None:
    names = ("MOST_VALUES", "TIMES", "RECORDED", "ENTRY", "SLOT_BITS", "TIME_BITS")
    assert [int(defined()[name]) for name in names] == [getattr(queries, name) for name in names]
    assert RECORDED < 2 ** (32 - SLOT_BITS - TIME_BITS) and 2**TIME_BITS == TIMES
    attention = (FOLDER / "attention.cuh").read_text()
    assert "#define GROUP_TOKENS (2 * TASKS * PIECE)" in attention
    for name in ("PIECE", "TASKS"):
        assert f"#define {name} {getattr(queries, name)}" in attention
    assert queries.GROUP_TOKENS == 2 * queries.TASKS * queries.PIECE


def test_a_query_is_hashed_as_it_was_read_and_after_it_was_answered() -> None:
    answer = (FOLDER / "answer.cuh").read_text()
    take = answer.partition("INLINE bool take(")[2].partition("\n    }\n")[0]
    assert take.index("rounded(") < take.index("make_uint4(pair[0].x, pair[0].z, pair[1].x, pair[1].z)"), (
        "the same registers"
    )
    body = answer.partition("    answer(const bf16 *cache")[2]
    assert body.index("words.take(") < body.index("answer_item(") < body.index("record_queries(")
    assert body.count("record_queries(") == 1 and body.count("words.take(") == 1
    record = answer.partition("INLINE void record_queries(")[2].partition("\n}\n")[0]
    assert "look(" not in record and "= __ldcg(kept + number" in record


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")
def test_products_are_right_modulo_the_prime(tmp_path: Path) -> None:
    source = (FOLDER / "queries.cuh").read_text().partition("/* A vault's secret numbers")[0]
    high = "static unsigned long long __umul64hi(unsigned long long a, unsigned long long b)"
    shown = "unsigned long long shown(unsigned long long a, unsigned long long b) { return product_of(a, b); }"
    shown += "unsigned long long fold(unsigned long long a, unsigned long long b) { return folded(a, b); }"
    text = f"#define INLINE static inline\n{high} {{ return ((unsigned __int128)a * b) >> 64; }}\n{source}\n{shown}\n"
    (tmp_path / "q.c").write_text(text)
    compiler = find_compiler()
    assert compiler is not None
    library = tmp_path / "q.so"
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "q.c")], check=True)
    made = ctypes.CDLL(str(library))
    for function in (made.shown, made.fold):
        function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_uint64] * 2
    draw = random.Random(3)
    edges = [
        0,
        1,
        2,
        7,
        PRIME - 1,
        PRIME - 2,
        PRIME // 2,
        2**32 - 1,
        2**32,
        *(draw.randrange(PRIME) for _ in range(50)),
    ]
    assert all(made.shown(a, b) == a * b % PRIME for a in edges for b in edges)
    words = [0, 1, 2**61 - 1, 2**61, 2**64 - 1, *(draw.randrange(2**64) for _ in range(50))]
    highs = [0, 1, 2**58 - 1, *(draw.randrange(2**58) for _ in range(20))]
    assert all(made.fold(low, high) == (low + (high << 64)) % PRIME for low in words for high in highs)


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock())
    yield from imported("cloister.compute.gpu.arena", monkeypatch)


@pytest.fixture
def answerer(arena: ModuleType) -> Any:
    """A vault without a GPU, with a prompt exposed in its first slot."""
    shape = ArenaShape(100, CacheShape(layers=3, kv_heads=2, dim=64), 8192, slots=2)
    model = SimpleNamespace(rotation=lambda far: (torch.zeros(64), torch.zeros(64)))
    hashing = arena.Hashing.by(torch.zeros(shape.keys.words, dtype=torch.int64))
    records = torch.zeros(2, RECORDED + 1, ENTRY, dtype=torch.int64)
    exposed = torch.zeros(2, shape.words, dtype=torch.int32)
    cache = SimpleNamespace(arena=shape, exposed=exposed, records=records, hashing=hashing)
    made = arena.ArenaAnswerer(model, cache)
    made.start()
    assert torch.equal(hashing.keys, made._keys.words) and not records.any()
    made.expose(0, range(50), start=0, end=LENGTH, rotation=0)
    return made


def same(answerer: Any, node: Node, *indices: int) -> bool:
    """As a pass of the vault's kernels does, in a block that compares."""
    hashing = answerer._hashing
    with answerer.comparing([(0, index) for index in indices]) as compared:
        assert int(hashing.rows) == len(indices) and not hashing.sums[: len(indices)].any()
        for row, index in enumerate(indices):
            for at, of in enumerate(asked_for(index)):
                for kv, words in enumerate(of):
                    hashed = plain(node.keys, at, kv, words) % PRIME
                    hashing.sums[row] += torch.tensor([hashed % 2**HALF, hashed >> HALF])
    assert int(hashing.rows) == 0, "other passes are not hashed"
    return bool(compared())


def behind(answerer: Any) -> Node:
    """Who answers for this vault."""
    node = Node()
    node.keys, node.entries = answerer._keys, answerer._cache.records[0]
    return node


@pytest.fixture
def patient(arena: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens while a vault waits, one after the other; then nothing."""
    events: list[Callable[[], None]] = []
    monkeypatch.setattr(arena, "sleep", lambda seconds: events.pop(0)() if events else None)
    return events


def test_a_vault_compares_what_was_asked_with_its_own(answerer: Any, patient: list[Any]) -> None:
    node = behind(answerer)
    for index in range(3):
        node.ask(index)
    assert same(answerer, node, 0, 1) and same(answerer, node, 2) and answerer.asked(0) == 3
    assert same(answerer, node) and not same(answerer, node, 3)
    answerer.withdraw(0)
    answerer.expose(0, range(50), start=0, end=LENGTH, rotation=0)
    assert answerer.asked(0) == 0 and not same(answerer, node, 0), "a slot begins anew"
    node.ask(0, time=3)
    assert same(answerer, node, 0) and answerer.asked(1) == 0


def test_what_is_being_asked_again_while_it_is_compared_is_no_deviation(answerer: Any, patient: list[Any]) -> None:
    """A step that recomputes a preempted answer asks index after index, and each is half asked for a moment."""
    node, again, low = behind(answerer), Node(), torch.tensor([1, 0, 0])
    again.keys = node.keys
    for index in range(5):
        node.ask(index)
        again.ask(index, time=1)

    def goes_on(ended: int) -> None:
        """The step of one index ends, and half of the next one's is there."""
        if ended >= 0:
            node.entries[ended] += again.entries[ended] * (1 - low)
        if ended < 4:
            node.entries[ended + 1] += again.entries[ended + 1] * low

    patient += [partial(goes_on, ended) for ended in range(5)]
    goes_on(-1)
    assert same(answerer, node, *range(5)) and patient, "each was the same at some moment"
    while patient:
        patient.pop(0)()
    assert same(answerer, node)


def test_one_that_stays_another_is_a_deviation_in_each_later_comparison(answerer: Any, patient: list[Any]) -> None:
    node = behind(answerer)
    for index in range(3):
        node.ask(index)
    assert same(answerer, node, 0)
    node.ask(0, time=1, alter=add_to_first(lambda item: 1))
    assert not same(answerer, node, 1) and not same(answerer, node, 2)


def test_more_rows_than_are_hashed_cannot_be_compared(answerer: Any) -> None:
    with pytest.raises(ValueError, match="more rows"), answerer.comparing([(0, 0)] * (queries.MOST_COMPARED + 1)):
        pass
    assert int(answerer._hashing.rows) == 0
