"""The contracts of a device. Only its own kernels look inside its cache and its links' ends."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from cloister.compute.layer import Angles, Beginning, DrawRows, Gate, Layer, MaskRow, Packed
from cloister.compute.layout import BLOCK_TOKENS, Batch, Layout, RemoteRows
from cloister.errors import SetupError
from cloister.placement import Placement, Role

# where a partitioned step's time goes (Petridish, Figure 7)
PHASES = ("query", "key_value", "output_attention", "waiting", "merge", "rest")


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one position costs: layers × KV heads × dim, for keys and for values."""

    layers: int
    kv_heads: int
    dim: int

    def block_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.kv_heads * self.dim * BLOCK_TOKENS * dtype.itemsize


class KVCache(ABC):
    """The paged cache's storage. The pool knows which sequence has which block."""

    shape: CacheShape
    blocks: int
    dtype: torch.dtype

    @abstractmethod
    def wipe(self, blocks: Sequence[int]) -> None: ...

    @abstractmethod
    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """No block is both source and target."""


class AttentionShape:
    """A model's numbers that both ends of a link need. Every decoder has them."""

    cache_shape: CacheShape
    queries_per_kv_head: int
    scales: list[float]
    windows: list[int]  # of every layer's attention: how far back it looks (0: to the beginning)
    private_layers: int = 0  # the first ones: only vaults compute them for answers to their prompts
    beginning: Beginning | None = None  # those layers

    @property
    def heads(self) -> int:
        return self.queries_per_kv_head * self.cache_shape.kv_heads

    def rotation(self, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines that rotate a rotated query by this distance; empty where the model rotates nothing."""
        return torch.empty(0), torch.empty(0)


class LinkAsker(ABC):
    """The service's end of all its links. A vault that is late, gone or malformed fails its own requests only."""

    capacity: int  # of one link, at a time
    most_rows: int = 2**31  # of a recorded step that asks

    @abstractmethod
    def attach(self, link: int, question: int, answer: int) -> None:
        """The caller closes the descriptors."""

    def export(self) -> list[int]:
        """Before the seal: descriptors of the device's memory that links are made of. The caller closes them."""
        return []

    def attach_slot(self, link: int, slot: int) -> None:
        raise SetupError("This device has no link slots.")

    @abstractmethod
    def detach(self, link: int) -> None:
        """The vault is gone. Not while a step is under way."""

    def aim(self, remotes: Sequence[RemoteRows], rows: int) -> torch.Tensor:
        """Which slot each row of a recorded step asks, [layout.ASKS, rows]: no slot twice."""
        raise SetupError("This device's links are not asked by recorded steps.")

    @abstractmethod
    def broken(self) -> dict[int, str]:
        """Links that failed in the last step that asked, and how: vault_lost, vault_timeout or link_malformed."""


@dataclass(frozen=True, slots=True, repr=False)
class Begun:
    """An answer that a vault takes through its private layers: `blocks` hold its prompt, then up to `limit` tokens."""

    layout: Layout
    blocks: Sequence[int]
    first: int
    limit: int


class LinkAnswerer:
    """A vault's end of its link, without tokens. A device overrides `start`, `_write` and `_erase`."""

    recorded = 2**31  # tokens of an answer whose queries it can compare

    def __init__(self, slots: int = 0) -> None:
        self.slots, self._free = slots, set(range(slots))  # for prompts exposed at once
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def connect(self, question: int, answer: int) -> None:
        """To its link, once, if it was made without. What no two vaults may share is made here, not before a fork."""
        os.close(self._event)
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def start(self) -> None:
        """Before the process is sealed: that allows no new threads."""

    def fileno(self) -> int:
        """Becomes readable when it stops answering."""
        return self._event

    @property
    def verdict(self) -> str:
        """Why it stopped answering: empty if the link was closed."""
        return ""

    def free_slot(self) -> int | None:
        return min(self._free, default=None)

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        """Answer for positions start..end-1, which begin these blocks. `rotation`: Layout.rotation."""
        if slot not in self._free:
            raise ValueError("the slot is taken or does not exist")
        self._write(slot, blocks, start, end, rotation)
        self._free.remove(slot)

    def begin(self, slot: int, begun: Begun) -> None:
        """Before `expose`, where layers are private."""

    def withdraw(self, slot: int) -> None:
        """The service must have stopped asking: a question now ends the link."""
        self._erase(slot)
        self._free.add(slot)

    def _write(self, slot: int, blocks: Sequence[int], start: int, end: int, rotation: int) -> None:
        return None

    def _erase(self, slot: int) -> None:
        return None

    def asked(self, slot: int) -> int | None:
        """How many of an answer's tokens queried this slot; None where that is not recorded."""

    def started(self, rows: Sequence[tuple[int, int]], tokens: Sequence[int]) -> bool:
        """Whether these tokens began the rows (slot, index) of answers; always, where no layer is private."""
        return True

    @contextmanager
    def comparing(self, rows: Sequence[tuple[int, int]]) -> Iterator[Callable[[], bool]]:
        """In the block, a pass has these rows (slot, index) of answers. Tells afterwards whether each layer's queries
        of them are the ones that were asked here; always, where they are not recorded."""
        yield lambda: True

    def leave(self) -> None:
        """Stop answering for good: the process is about to end."""

    def close(self) -> None:
        os.close(self._event)


class AttentionHost(ABC):
    """An attention process's end of several links: vaults compute keys and values into its memory, one piece each."""

    @abstractmethod
    def export(self) -> list[int]: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def fileno(self) -> int: ...

    @abstractmethod
    def clear(self, vault: int) -> None: ...

    @abstractmethod
    def leave(self) -> None:
        """Stop answering for good: the process is about to end."""


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """What the layers of one step share. `angles` may be left out where the kernels rotate nothing."""

    batch: Batch
    cache: KVCache
    angles: Angles | None = None
    asker: LinkAsker | None = None


class Kernels(ABC):
    """The arithmetic of a decoder. Every row depends on its own inputs alone, bit for bit. Activations are fp32."""

    name: str
    dtype: torch.dtype
    takes_starts: bool = False  # whether its links' vaults can compute private layers
    shows_queries: bool = False

    @contextmanager
    def watching(self, layers: Collection[int], take: Callable[[int, torch.Tensor], None]) -> Iterator[None]:
        """In the block, `take` gets these layers' queries, [rows, heads, dim], rotated; they last until it returns."""
        yield

    def start_team(self, threads: int) -> int:
        return 1

    def use_cores(self, cores: int) -> None:
        return None

    def take_short_turns(self) -> None:
        """The calling thread will wake vaults at every layer. Have the woken ones wait until it has woken all."""

    def drop_scratch(self) -> None:
        return None

    def forget(self) -> None:
        """Overwrite what is left of the steps so far outside the cache."""

    @property
    def seconds(self) -> dict[str, float]:
        return {}

    @property
    def draw_rows(self) -> DrawRows | None:
        return None

    @property
    def mask_row(self) -> MaskRow | None:
        return None

    @abstractmethod
    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gate: Gate | None = None) -> Packed:
        """A gated weight [columns, k] is interleaved already."""

    @abstractmethod
    def embed(self, packed: Packed, tokens: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """x · Wᵀ + bias, through the gate if there is one; with `add_to`, added to it in place."""

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor: ...

    @abstractmethod
    def store(self, keys: torch.Tensor, values: torch.Tensor, layer: int, batch: Batch, cache: KVCache) -> None: ...

    @abstractmethod
    def attention(self, q: torch.Tensor, layer: int, step: Step, scale: float, window: int = 0) -> torch.Tensor:
        """Causal attention of q [rows, heads, dim] over each row's own segments, merged: [rows, heads × dim]."""

    def take_starts(self, x: torch.Tensor, step: Step) -> None:
        """Rows of x that ask vaults become what the vaults make of their tokens in the private layers."""
        raise SetupError("These kernels have no private layers.")

    @abstractmethod
    def run_layers(self, layers: Sequence[Layer], x: torch.Tensor, step: Step) -> None: ...


class Device(ABC):
    kernels: Kernels
    survives_fork: bool = True  # else a child opens the device and makes its own decoder
    records: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        return ()

    placement: Placement = Placement()

    def can_share(self, model: AttentionShape) -> bool:
        return False

    def share(self, mps_folder: str, attention_processes: int) -> None:
        """Before `open`: from now on processes compute at the same time, as clients of the MPS in this folder."""
        raise SetupError("Processes share this device without MPS.")

    @property
    def lost(self) -> bool:
        """Whether this process cannot compute on it again. Asked when a step failed."""
        return False

    def open(self, role: Role = "service") -> None:
        """This process can fork no process that computes here afterwards."""

    def finish(self) -> None:
        """The process is about to end: wait for all that it began here."""

    def hold_weights(self, file: torch.Tensor, memory: int | None = None) -> int | None:
        """Have the file of weights in the device's memory once, and views of it as parts. None: each process has a
        copy. `memory`, closed by the caller, is mapped to be read; else a copy's descriptor is returned."""

    def reserve(self) -> None:
        """Take the memory that steps will need, where a sealed process gets no more."""

    @abstractmethod
    def cache(self, shape: CacheShape, blocks: int) -> KVCache:
        """In the kernels' precision: reserved now, allocated as it is written."""

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the memory the kernels read: a copy, where that is not the host's."""
        return tensor

    def place_product(self, packed: Packed) -> Packed:
        bias, scale = (None if each is None else self.place(each) for each in (packed.bias, packed.scale))
        return replace(packed, data=self.place(packed.data), bias=bias, scale=scale)

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """A function that repeats `run` on the same tensors with other values: in one launch where the device can."""
        return run

    def partition_refusal(self, model: AttentionShape) -> str:
        return "This device has no links to vaults."

    def asker(self, model: AttentionShape, patience_ms: int) -> LinkAsker:
        """One step waits for one vault at most `patience_ms` in all."""
        raise SetupError("These kernels cannot ask vaults.", hint="Use the native kernels.")

    def answerer(self, model: AttentionShape, cache: KVCache, question: int = -1, answer: int = -1) -> LinkAnswerer:
        """Without descriptors: for `connect`, where the device survives a fork."""
        raise SetupError("Answering a link needs the native kernels.", hint="Install a C compiler.")

    def vault_cache(self, shape: CacheShape, blocks: int, memory: int) -> KVCache:
        """Where links are on the device, in the memory behind this descriptor, which the caller closes."""
        return self.cache(shape, blocks)

    def attention_host(
        self, model: AttentionShape, blocks: int, vaults: int, mailbox: int, patience_ms: int
    ) -> AttentionHost:
        """The caller closes the mailbox's descriptor."""
        raise SetupError("This device has no attention processes.")
