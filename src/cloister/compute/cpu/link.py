"""Both ends of a link on the CPU. The waiting and copying is in link.h."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL, POINTER, addressof, byref, pointer
from secrets import randbelow

import torch

from cloister.compute.base import AttentionShape, Begun, LinkAnswerer, LinkAsker
from cloister.compute.cpu.library import AnsweringStruct, AskedStruct, AskingStruct, ComparingStruct, SlotStruct
from cloister.compute.cpu.start import Starting
from cloister.compute.host_cache import HostCache, untouched_zeros
from cloister.compute.layout import BLOCK_TOKENS, RemoteRows
from cloister.errors import SetupError, VaultLost
from cloister.link.memory import NUMBER_AT, LinkShape

VERDICTS = {1: "vault_lost", 2: "vault_timeout", 3: "link_malformed"}
LOST = 1
SLOTS = 64
MOST_RECORDED = 8192  # tokens of an answer whose queries are compared: a longer one is not verified
MERSENNE_61 = 2**61 - 1
ASKED = 2**63  # as a signed number what link.h's is as an unsigned one
_Pointer = POINTER(AskedStruct)
_started: list["CpuAnswerer"] = []  # kept for the life of the process: their threads read memory these objects own


class _Link:
    def __init__(self, shape: LinkShape, question: int, answer: int) -> None:
        self._question, self._answer = shape.map(question, answer, asks=True)
        number, ends = self._question.word(NUMBER_AT).value, (self._question.address, self._answer.address)
        self.struct = AskedStruct(*ends, number=number, capacity=shape.capacity)

    def close(self) -> None:
        self._question.close()
        self._answer.close()


class CpuAsker(LinkAsker):
    def __init__(self, shape: LinkShape, patience_ms: int) -> None:
        self._shape = shape
        self.capacity = shape.capacity
        self._patience_ns = patience_ms * 1_000_000
        self._links: dict[int, _Link] = {}
        self._asked: dict[int, AskedStruct] = {}
        self._keep: list[torch.Tensor] = []

    def attach(self, link: int, question: int, answer: int) -> None:
        if link in self._links:
            raise ValueError("this link is attached already")
        self._links[link] = _Link(self._shape, question, answer)

    def detach(self, link: int) -> None:
        self._asked.pop(link, None)
        if (known := self._links.pop(link, None)) is not None:
            known.close()

    def begin(self, remotes: Sequence[RemoteRows]) -> AskingStruct:
        self._asked, self._keep = {}, []
        for remote in remotes:
            if len(remote.rows) > self.capacity:
                raise VaultLost("A step has more rows for one vault than its link carries.")
            known = self._links.get(remote.link)
            struct = AskedStruct(verdict=LOST) if known is None else known.struct
            if known is not None:
                struct.verdict = 0
                struct.patience_ns = self._patience_ns
            rows, asks = (torch.tensor(numbers, dtype=torch.int32) for numbers in (remote.rows, remote.asks))
            struct.row, struct.ask, struct.rows = rows.data_ptr(), asks.data_ptr(), len(rows)
            self._keep += [rows, asks]
            self._asked[remote.link] = struct
        array = (_Pointer * len(remotes))(*(pointer(struct) for struct in self._asked.values()))
        return AskingStruct(links=array, count=len(remotes))

    def broken(self) -> dict[int, str]:
        return {link: VERDICTS[struct.verdict] for link, struct in self._asked.items() if struct.verdict}


class CpuAnswerer(LinkAnswerer):
    def __init__(
        self,
        library: CDLL,
        model: AttentionShape,
        cache: HostCache,
        shape: LinkShape,
        question: int = -1,
        answer: int = -1,
    ) -> None:
        super().__init__(SLOTS)
        self._library, self._model, self._shape = library, model, shape
        self._cache = cache
        self._scales = torch.tensor(model.scales, dtype=torch.float32)
        self._windows = torch.tensor(model.windows, dtype=torch.int32)
        self._slots = (SlotStruct * SLOTS)()
        # Of fixed size and never freed: a question that races with `withdraw` reads old numbers, not freed memory.
        self._tables = torch.zeros(SLOTS, cache.blocks, dtype=torch.int32)
        rotary = model.rotation(0)[0].numel()
        self._rotations = torch.zeros(2, SLOTS, rotary)
        for slot, one in enumerate(self._slots):
            one.blocks = self._tables[slot].data_ptr()
            one.cosine, one.sine = self._rotations[0, slot].data_ptr(), self._rotations[1, slot].data_ptr()
        self.recorded = min(cache.blocks * BLOCK_TOKENS, MOST_RECORDED)
        self._record = untouched_zeros(SLOTS, shape.layers, self.recorded, dtype=torch.int64)
        self._query, self._key = torch.zeros(shape.heads * shape.dim), 0
        held = (cache.keys(0).data_ptr(), cache.values(0).data_ptr(), cache.bytes_per_layer, cache.block)
        layers = (self._scales.data_ptr(), self._windows.data_ptr(), self._query.data_ptr(), self._record.data_ptr())
        sizes = (SLOTS, shape.heads, cache.shape.kv_heads, shape.dim, shape.layers, shape.capacity, rotary)
        bf16 = int(cache.dtype == torch.bfloat16)
        self._starting: Starting | None = None
        self._first = 0
        self._begun: dict[int, Begun] = {}
        self._struct = AnsweringStruct(
            None, None, addressof(self._slots), *held, *layers, 0, None, *sizes, bf16, self.recorded
        )
        if question >= 0:
            self.connect(question, answer)

    def connect(self, question: int, answer: int) -> None:
        super().connect(question, answer)
        self._question, self._answer = self._shape.map(question, answer, asks=False)
        self._key = 1 + randbelow(MERSENNE_61 - 1)
        struct = self._struct
        struct.question, struct.reply = self._question.address, self._answer.address
        struct.key, struct.event, struct.number = self._key, self._event, self._question.word(NUMBER_AT).value

    def compute_first(self, starting: Starting) -> None:
        """The private layers, from now on alone."""
        self._starting, self._first = starting, starting.layers
        self._struct.starting, self._struct.first = starting.address, starting.layers

    def begin(self, slot: int, begun: Begun) -> None:
        self._begun[slot] = begun

    def start(self) -> None:
        if self._library.cloister_answer(byref(self._struct)):
            raise SetupError("The vault cannot start the thread that answers its link.")
        _started.append(self)

    @property
    def verdict(self) -> str:
        return VERDICTS.get(self._struct.verdict, "")

    def _write(self, slot: int, blocks: Sequence[int], start: int, end: int, rotation: int) -> None:
        length = end - start
        fits = length >= 1 and -(-length // BLOCK_TOKENS) <= len(blocks) <= self._cache.blocks
        if not fits or not 0 <= min(blocks) <= max(blocks) < self._cache.blocks:
            raise ValueError("the span does not lie in these blocks")
        self._tables[slot, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        self._rotations[0, slot], self._rotations[1, slot] = self._model.rotation(rotation)
        one = self._slots[slot]
        self._record[slot, :, : one.asked].zero_()
        one.asked = 0
        if self._starting is not None:
            begun = self._begun.pop(slot)
            self._starting.place(slot, begun, self._model.rotation(begun.layout.rotation))
            self._record[slot, 0, 0] = begun.first - ASKED
        one.length, one.ahead, one.rotated = length, length, int(rotation != 0)
        one.exposed = 1

    def _erase(self, slot: int) -> None:
        self._library.cloister_withdraw(byref(self._struct), slot)

    def asked(self, slot: int) -> int:
        return int(self._slots[slot].asked)

    def started(self, rows: Sequence[tuple[int, int]], tokens: Sequence[int]) -> bool:
        known = (row for row in zip(rows, tokens, strict=True) if self._first and row[0][1] < self.recorded)
        return all(int(self._record[slot, 0, index]) == token - ASKED for (slot, index), token in known)

    @contextmanager
    def comparing(self, rows: Sequence[tuple[int, int]]) -> Iterator[Callable[[], bool]]:
        each = self._record[0].numel()
        places = [slot * each + index if index < self.recorded else -1 for slot, index in rows]
        place = torch.tensor(places, dtype=torch.int64)
        numbers = (place.data_ptr(), self._record.data_ptr(), self._key, len(rows), self.recorded, self._first)
        comparing = ComparingStruct(*numbers)
        self._library.cloister_compare(byref(comparing))
        try:
            yield lambda: comparing.differing == 0
        finally:
            self._library.cloister_compare(None)
