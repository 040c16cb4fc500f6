"""Makes a link: the controller's part. Two memfds of fixed size, each writable through one descriptor only.

The controller hands them out and never looks at what they carry; it can close the link, and that is all.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from cloister.link import futex
from cloister.link.mapping import Mapping
from cloister.link.shape import CLOSED, NUMBER_AT, LinkShape

_FIXED_SIZE = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a link."""

    writable: int
    readonly: int
    mapping: Mapping

    def close_down(self) -> None:
        """Put the number that ends the link where the next one would be, and wake whoever sleeps on it."""
        self.mapping.word(NUMBER_AT).value = CLOSED
        futex.wake(self.mapping.address + NUMBER_AT)

    def close(self) -> None:
        self.mapping.close()
        os.close(self.writable)
        os.close(self.readonly)


class LinkMemory:
    """A link's two directions. The service gets `service_descriptors`, the vault `vault_descriptors`."""

    def __init__(self, shape: LinkShape) -> None:
        self.shape = shape
        self._question = _direction("cloister-question", shape, shape.question_bytes)
        self._answer = _direction("cloister-answer", shape, shape.answer_bytes)
        self._open = True

    @property
    def service_descriptors(self) -> tuple[int, int]:
        return self._question.writable, self._answer.readonly

    @property
    def vault_descriptors(self) -> tuple[int, int]:
        return self._question.readonly, self._answer.writable

    def close_down(self) -> None:
        """End the link for both sides: a service that waits returns at once, a vault's loop ends."""
        if self._open:
            self._question.close_down()
            self._answer.close_down()

    def close(self) -> None:
        """Close down and let go of the memory; it is gone when the others let go too."""
        if self._open:
            self.close_down()
            self._open = False
            self._question.close()
            self._answer.close()


def create_link(shape: LinkShape) -> LinkMemory:
    """A fresh link."""
    return LinkMemory(shape)


def _direction(name: str, shape: LinkShape, size: int) -> Direction:
    writable = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(writable, size)
    os.pwrite(writable, shape.head(), 0)
    # Of fixed size: whoever shrank it would kill the other side at its next access.
    fcntl.fcntl(writable, fcntl.F_ADD_SEALS, _FIXED_SIZE)
    readonly = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    return Direction(writable, readonly, Mapping(writable, size, writable=True))
