"""The layers of the sandbox by name, which of them this process holds, and what a process to be sealed may keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from cloister.errors import SandboxIncomplete


class Layer(StrEnum):
    USER_NAMESPACE = "user_namespace"
    NETWORK_NAMESPACE = "network_namespace"
    PID_NAMESPACE = "pid_namespace"
    MOUNT_NAMESPACE = "mount_namespace"
    IPC_NAMESPACE = "ipc_namespace"
    UTS_NAMESPACE = "uts_namespace"
    EMPTY_ROOT = "empty_root"
    CAPABILITIES = "capabilities"
    NO_NEW_PRIVS = "no_new_privs"
    LANDLOCK = "landlock"
    CLOSED_DESCRIPTORS = "closed_descriptors"
    CLEAN_ENVIRONMENT = "clean_environment"
    RLIMITS = "rlimits"
    NOT_DUMPABLE = "not_dumpable"
    DEATH_WITH_PARENT = "death_with_parent"
    MEMORY_LOCK = "memory_lock"
    NO_SWAP = "no_swap"
    SECCOMP = "seccomp"
    NO_DEVICES = "no_devices"
    GPU_IN_TURNS = "gpu_in_turns"
    OWN_ATTENTION = "own_attention"


NAMESPACES = frozenset(layer for layer in Layer if layer.endswith("_namespace"))
ON_A_GPU = frozenset({Layer.NO_DEVICES, Layer.GPU_IN_TURNS, Layer.OWN_ATTENTION})
BEST_EFFORT = frozenset({Layer.MEMORY_LOCK, Layer.NO_SWAP}) | ON_A_GPU
"""An unprivileged user may not lock much memory. A process that computes on a GPU holds it open; under MPS it computes
at the same time as others, and attention processes hold the keys of several users' prompts. These layers are reported
when missing; a process serves without them."""


@dataclass(frozen=True)
class Report:
    """Which layers hold, and which do not; both in the order of `Layer`."""

    applied: tuple[Layer, ...]
    missing: tuple[str, ...]

    @classmethod
    def of(cls, holding: Iterable[Layer]) -> Report:
        held = frozenset(holding)
        return cls(
            applied=tuple(layer for layer in Layer if layer in held),
            missing=tuple(layer.value for layer in Layer if layer not in held),
        )

    @property
    def refused(self) -> tuple[str, ...]:
        """The missing layers without which a process must not serve."""
        return tuple(name for name in self.missing if Layer(name) not in BEST_EFFORT)

    def require(self, *, allow_degraded: bool) -> None:
        if self.refused and not allow_degraded:
            raise SandboxIncomplete(
                f"This machine lacks layers of the sandbox: {', '.join(self.refused)}.",
                hint="Enable them, or accept a weaker sandbox with --allow-degraded-sandbox.",
            )


@dataclass(frozen=True)
class Profile:
    """`futexes` says where the process shares futexes with others (seccomp.filter_program). `without` leaves layers out
    on purpose: so that a test can watch a check go red; NO_DEVICES where a process holds a GPU open, GPU_IN_TURNS where
    it computes there beside others, and OWN_ATTENTION where one holds the keys of several users' prompts."""

    name: Literal["vault", "service", "attention", "sealed_api", "detector"]
    keep_descriptors: Collection[int]
    data_bytes: int
    futexes: int | None = None
    file_bytes: int = 0
    """How long a file may be that it was given open; it can open none."""
    without: frozenset[Layer] = frozenset()
    allow_degraded: bool = False

    @property
    def receives_descriptors(self) -> bool:
        """The service gets a link's memory when a vault comes up; a vault has all its descriptors before the seal."""
        return self.name == "service"

    @property
    def open_files(self) -> int:
        """One more than the highest descriptor it may ever have."""
        spare = 1024 if self.receives_descriptors else 16
        return max((2, *self.keep_descriptors)) + 1 + spare


_held: set[Layer] = set()
"""A forked child inherits the list as it inherits most of the layers."""


def record(*layers: Layer) -> None:
    _held.update(layers)


def forget(layers: Iterable[Layer]) -> None:
    """A child that shall have its own does not count its parent's."""
    _held.difference_update(layers)


def held() -> frozenset[Layer]:
    return frozenset(_held)
