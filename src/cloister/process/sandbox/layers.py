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
# Reported when missing; a process serves without them.
BEST_EFFORT = frozenset({Layer.MEMORY_LOCK, Layer.NO_SWAP}) | ON_A_GPU


@dataclass(frozen=True)
class Report:
    """Both in the order of `Layer`."""

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
    """`futexes`: shared with others (seccomp.filter_program). `without` leaves layers out: in tests, on a GPU."""

    name: Literal["vault", "service", "attention", "sealed_api", "detector"]
    keep_descriptors: Collection[int]
    data_bytes: int
    futexes: int | None = None
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


_held: set[Layer] = set()  # a forked child inherits the list as it inherits most of the layers


def record(*layers: Layer) -> None:
    _held.update(layers)


def forget(layers: Iterable[Layer]) -> None:
    """A child that shall have its own does not count its parent's."""
    _held.difference_update(layers)


def held() -> frozenset[Layer]:
    return frozenset(_held)
