"""The nursery's life: load, rehearse, leave the host, then fork children on order and bury them."""

from __future__ import annotations

import gc
import os
import socket
from typing import TypeAlias

from cloister.errors import ProtocolError, SetupError
from cloister.messages.failure import start_failed
from cloister.messages.nursery import Preload, Preloaded, Spawn, Spawned, ToNursery
from cloister.process.blocking import BlockingEndpoint
from cloister.process.sandbox.namespaces import empty_root, fresh_pid_namespace, leave_host
from cloister.process.sandbox.seccomp import filter_program
from cloister.process.sandbox.trial import available_layers

Desk: TypeAlias = BlockingEndpoint[Preload | Spawn]


def serve(control: socket.socket) -> None:
    """Serve until the controller hangs up; the children end with this process."""
    desk: Desk = BlockingEndpoint(control, ToNursery)
    import cloister.nursery.child  # torch and all: while the controller has the weights packed
    import cloister.nursery.rehearsal  # noqa: F401

    order = desk.next()
    if order is None:
        return
    if not isinstance(order, Preload):
        raise ProtocolError("The nursery was ordered to fork before it was told what to load.")
    [weights] = desk.take_descriptors(1)
    try:
        nursery = Nursery(desk, order, weights)
    except Exception as reason:
        desk.send(start_failed(reason, "The nursery cannot start"))
        return
    nursery.run()


class Nursery:
    """Loaded, alone in its namespaces, and ready to fork."""

    def __init__(self, desk: Desk, preload: Preload, weights: int) -> None:
        layers = available_layers()
        layers.require(allow_degraded=preload.allow_degraded)
        from cloister.nursery import child
        from cloister.nursery.house import furnish
        from cloister.nursery.rehearsal import rehearse
        from cloister.vault.process import partitionable

        self._desk = desk
        self._allow_degraded = preload.allow_degraded
        self._child = child
        self._house = furnish(preload, weights)
        os.close(weights)
        rehearse(self._house)
        for receives in (False, True):  # assembled once here, not once in every child, which is pid 1 of its namespace
            filter_program(receives_descriptors=receives, own_pid=1)
        gc.collect()
        gc.freeze()  # so that no collection in a child writes to, and thereby copies, what it shares with all others
        if len(os.listdir("/proc/self/task")) != 1:
            raise SetupError("A library started a thread in the nursery, which could not fork safely.")
        leave_host()
        empty_root()
        self._living: dict[int, int] = {}
        decoder = self._house.decoder
        shape = decoder.cache_shape
        able = partitionable(decoder)
        desk.send(Preloaded(decoder.heads, shape.dim, shape.layers, partitionable=able, missing=layers.missing))

    def run(self) -> None:
        """Take orders until the controller hangs up."""
        while (order := self._desk.next_or_readable(set(self._living))) is not None:
            if isinstance(order, set):
                self._bury(order)
            elif isinstance(order, Spawn):
                self._fork(order)
            else:
                raise ProtocolError("The nursery is loaded already.")

    def _fork(self, spawn: Spawn) -> None:
        descriptors = self._desk.take_descriptors(self._child.DESCRIPTORS[spawn.role])
        fresh_pid_namespace()
        pid = os.fork()
        if not pid:
            self._child.live(spawn, self._house, descriptors, allow_degraded=self._allow_degraded)
        pidfd = os.pidfd_open(pid)
        self._living[pidfd] = pid
        for descriptor in descriptors:
            os.close(descriptor)
        self._desk.send(Spawned(spawn.child, pid), pidfd)

    def _bury(self, ended: set[int]) -> None:
        for pidfd in ended:
            os.waitpid(self._living.pop(pidfd), 0)
            os.close(pidfd)
