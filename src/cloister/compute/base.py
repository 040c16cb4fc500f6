"""The contracts of a device: kernels, cache, both ends of a link, and the device itself, which makes them.

A cache and a link's ends belong to one device: only its kernels look inside them. So another device may keep keys and
values, and what crosses a link, wherever it likes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cloister.compute.layer import Angles, DrawRows, Gate, Layer, Packed
from cloister.compute.layout import BLOCK_TOKENS, Batch, RemoteRows
from cloister.errors import SetupError
from cloister.placement import Placement, Role

PHASES = ("query", "key_value", "output_attention", "waiting", "merge", "rest")
"""Where a partitioned step's time goes (Petridish, Figure 7)."""

_NO_TIERS = "Leave out --cache-disk-bytes and --cache-host-bytes."


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one position costs: layers × KV heads × dim, for keys and for values."""

    layers: int
    kv_heads: int
    dim: int

    def block_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.kv_heads * self.dim * BLOCK_TOKENS * dtype.itemsize


class KVCache(ABC):
    """The paged cache's storage: keys and values of `blocks` blocks. The pool knows which sequence has which."""

    shape: CacheShape
    blocks: int
    dtype: torch.dtype
    on_host: bool = False
    """Whether it lies in the host's memory: then that is no tier below it."""

    @property
    def block_bytes(self) -> int:
        """What `read` gives and `write` takes, for every block."""
        return self.shape.block_bytes(self.dtype)

    @abstractmethod
    def wipe(self, blocks: Sequence[int]) -> None:
        """Overwrite the keys and values of these blocks."""

    def read(self, block: int) -> bytes:
        """A copy of a block's keys and values, for a tier below."""
        raise SetupError("What this device caches cannot be kept elsewhere.", hint=_NO_TIERS)

    def write(self, block: int, data: bytes) -> None:
        """Put such a copy into a block."""
        raise SetupError("What this device caches cannot be kept elsewhere.", hint=_NO_TIERS)

    @abstractmethod
    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the keys and values of each source to the target in its place; no block is both."""


class AttentionShape:
    """A model's numbers that both ends of a link need. Every decoder has them."""

    cache_shape: CacheShape
    queries_per_kv_head: int
    scales: list[float]
    windows: list[int]
    """For every layer's attention: the factor of the scores, and how far back it looks (0: to the beginning)."""

    @property
    def heads(self) -> int:
        """Query heads of a layer."""
        return self.queries_per_kv_head * self.cache_shape.kv_heads

    def rotation(self, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines that rotate a rotated query by this distance; empty where the model rotates nothing."""
        return torch.empty(0), torch.empty(0)


class LinkAsker(ABC):
    """The service's end of all its links. The kernels ask through it while a step is computed.

    A vault that is late, gone or malformed fails its own requests and no others.
    """

    capacity: int
    """Rows one link carries at a time, at most."""
    most_rows: int = 2**31
    """Rows of a recorded step that asks, at most."""

    @abstractmethod
    def attach(self, link: int, question: int, answer: int) -> None:
        """A vault may be asked from now on. The caller closes the descriptors."""

    def export(self) -> list[int]:
        """Before the seal: descriptors of the device's memory that links are made of, where it has any. The caller
        closes them."""
        return []

    def attach_slot(self, link: int, slot: int) -> None:
        """As `attach`, for the vault that has this link slot (placement.py)."""
        raise SetupError("This device has no link slots.")

    @abstractmethod
    def detach(self, link: int) -> None:
        """The vault is gone. Not while a step is under way."""

    def aim(self, remotes: Sequence[RemoteRows], rows: int) -> torch.Tensor:
        """For a recorded step: which slot each of its rows asks, as [layout.ASKS, rows] of numbers that the device's
        kernels read. No slot twice; rows that pad the step copy the first row's first number, with zeros behind."""
        raise SetupError("This device's links are not asked by recorded steps.")

    @abstractmethod
    def broken(self) -> dict[int, str]:
        """Links that failed in the last step that asked, and how: vault_lost, vault_timeout or link_malformed."""


class LinkAnswerer(ABC):
    """A vault's end of its link: it answers for spans of prompts whose keys and values the vault's cache holds.

    From `start` on it answers beside the caller, in a thread or on the device. It knows blocks and lengths, no tokens.
    """

    slots: int
    """How many prompts can be exposed at once."""

    @abstractmethod
    def start(self) -> None:
        """Begin to answer. Before the process is sealed: that allows no new threads."""

    @abstractmethod
    def fileno(self) -> int:
        """Becomes readable when it stops answering."""

    @property
    @abstractmethod
    def verdict(self) -> str:
        """Why it stopped answering: empty if the link was closed."""

    @abstractmethod
    def free_slot(self) -> int | None:
        """A slot nothing is exposed in, or None."""

    @abstractmethod
    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        """Answer for positions start..end-1 of a prompt of `end` tokens, which begin these blocks.

        `rotation`: how much further the service's queries must be rotated to stand after the prompt (Layout.rotation).
        """

    @abstractmethod
    def withdraw(self, slot: int) -> None:
        """Stop answering for this slot. The service must have stopped asking: a question now ends the link."""

    def leave(self) -> None:
        """Stop answering for good: the process is about to end."""
        return None


class AttentionHost(ABC):
    """An attention process's end of several links: vaults compute keys and values into its memory, one piece for each
    vault, and it answers for all of them. It knows lengths and blocks, no tokens and no requests."""

    @abstractmethod
    def export(self) -> list[int]:
        """Before `start`: descriptors of the memory, one for each vault. The caller closes them."""

    @abstractmethod
    def start(self) -> None:
        """Begin to answer, before the process is sealed."""

    @abstractmethod
    def fileno(self) -> int:
        """Becomes readable when it stops answering."""

    @abstractmethod
    def clear(self, vault: int) -> None:
        """This vault has ended: wipe its prompts' keys and values."""

    @abstractmethod
    def leave(self) -> None:
        """Stop answering for good: the process is about to end."""


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """What the layers of one step share. `angles` may be left out where the kernels rotate nothing; `asker` reaches
    the vaults that hold parts of the batch's rows."""

    batch: Batch
    cache: KVCache
    angles: Angles | None = None
    asker: LinkAsker | None = None


class Kernels(ABC):
    """The arithmetic a decoder needs. Every result row depends on its own inputs alone, bit for bit.

    Activations are fp32 in both precisions; weights and cache are in the precision of the kernels (bf16 inputs to a
    product are rounded once, sums stay in fp32).
    """

    name: str
    dtype: torch.dtype

    def start_team(self, threads: int) -> int:
        """Start the threads that compute, where there are any (0: one per core); how many compute now."""
        return 1

    def use_cores(self, cores: int) -> None:
        """Compute on at most this many of the team's threads from now on."""
        return None

    def take_short_turns(self) -> None:
        """The calling thread will wake vaults at every layer. Have the woken ones wait until it has woken all."""
        return None

    def drop_scratch(self) -> None:
        """Free memory that is kept for the next step."""
        return None

    def forget(self) -> None:
        """Overwrite what is left of the steps so far outside the cache, where anything is kept between them."""
        return None

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent so far in each phase of the layers; empty where it is not measured."""
        return {}

    @property
    def draw_rows(self) -> DrawRows | None:
        """The kernels' own draw of a token from each row of logits, where they have one."""
        return None

    @abstractmethod
    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gate: Gate | None = None) -> Packed:
        """The weight [columns, k] in the kernels' layout; a gated one is interleaved already."""

    @abstractmethod
    def embed(self, packed: Packed, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of the packed matrix, as fp32."""

    @abstractmethod
    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """x · Wᵀ + bias, through the gate if there is one; with `add_to`, added to it in place."""

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """RMSNorm over the last dimension."""

    @abstractmethod
    def store(self, keys: torch.Tensor, values: torch.Tensor, layer: int, batch: Batch, cache: KVCache) -> None:
        """Write the rows' keys and values [rows, kv heads, dim] into their cache slots."""

    @abstractmethod
    def attention(self, q: torch.Tensor, layer: int, step: Step, scale: float, window: int = 0) -> torch.Tensor:
        """Causal attention of q [rows, heads, dim] over each row's own segments, merged: [rows, heads × dim]."""

    @abstractmethod
    def run_layers(self, layers: Sequence[Layer], x: torch.Tensor, step: Step) -> None:
        """All layers over the residual stream x, in place."""


class Device(ABC):
    """One place to compute: its kernels, and all that must be in its memory."""

    kernels: Kernels
    survives_fork: bool = True
    """Whether a decoder made before a fork computes after it. Else a child opens the device and makes its own."""
    records: bool = False
    """Whether repeating a recorded step is cheaper than computing it again."""

    @property
    def files(self) -> tuple[str, ...]:
        """What `open` must be able to open."""
        return ()

    placement: Placement = Placement()

    def can_share(self, model: AttentionShape) -> bool:
        """Whether processes with this model can compute here at the same time."""
        return False

    def share(self, mps_folder: str, attention_processes: int) -> None:
        """Before `open`: from now on processes compute at the same time, as clients of the MPS in this folder."""
        raise SetupError("Processes share this device without MPS.")

    @property
    def lost(self) -> bool:
        """Whether this process cannot compute on it again. Asked when a step failed."""
        return False

    def open(self, role: Role = "service") -> None:
        """Begin to compute in this process. It can fork no process that computes here afterwards."""
        return None

    def hold_weights(self, file: torch.Tensor, memory: int | None = None) -> int | None:
        """Before parts are placed: have this file, of which they are views, in the device's memory once for all
        processes. With the descriptor `memory`, which the caller closes, it is mapped to be read. Without one it is
        copied there, and the returned descriptor is for other processes. None: each process has its own copy."""
        return None

    def reserve(self) -> None:
        """Take the memory that steps will need, where a sealed process gets no more."""
        return None

    @abstractmethod
    def cache(self, shape: CacheShape, blocks: int) -> KVCache:
        """A cache in the kernels' precision: reserved now, allocated as it is written."""

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the memory the kernels read: a copy, where that is not the host's."""
        return tensor

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """A function that repeats `run` on the same tensors with other values: in one launch where the device can."""
        return run

    def partition_refusal(self, model: AttentionShape) -> str:
        """Why this model's attention cannot be partitioned between service and vaults here; empty if it can."""
        return "This device has no links to vaults."

    def asker(self, model: AttentionShape, patience_ms: int) -> LinkAsker:
        """The service's end of its links. One step waits for one vault at most `patience_ms` in all."""
        raise SetupError("These kernels cannot ask vaults.", hint="Use the native kernels.")

    def answerer(self, model: AttentionShape, cache: KVCache, question: int, answer: int) -> LinkAnswerer:
        """A vault's end of the link behind these descriptors, which the caller closes."""
        raise SetupError("Answering a link needs the native kernels.", hint="Install a C compiler.")

    def vault_cache(self, shape: CacheShape, blocks: int, memory: int) -> KVCache:
        """A vault's cache. Where links are on the device it is in the memory behind this descriptor, which the caller
        closes."""
        return self.cache(shape, blocks)

    def attention_host(
        self, model: AttentionShape, blocks: int, vaults: int, mailbox: int, patience_ms: int
    ) -> AttentionHost:
        """An attention process's end of `vaults` links, each to a vault with `blocks` blocks. The caller closes the
        mailbox's descriptor."""
        raise SetupError("This device has no attention processes.")
