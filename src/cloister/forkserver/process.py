"""The fork server's life: load, rehearse, leave the host, then fork children on order and reap them.

It imports torch and all it will need at once, while the controller has the weights packed.
"""

from __future__ import annotations

import gc
import os
import socket

from cloister.errors import ProtocolError, SetupError
from cloister.forkserver import child
from cloister.forkserver.child import without_layers
from cloister.forkserver.rehearsal import rehearse
from cloister.link.region import links
from cloister.messages.lifecycle import Ping, Pong, Preload, Preloaded, Spawn, Spawned, ToForkServer, start_failed
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import give_back_freed_memory
from cloister.process.numpy_memory import use_pythons_memory
from cloister.process.sandbox.layers import Layer
from cloister.process.sandbox.namespaces import (
    MEETING_PLACE,
    empty_root,
    fresh_pid_namespace,
    leave_host,
    root_of_devices,
)
from cloister.process.sandbox.seal import available_layers
from cloister.process.sandbox.seccomp import filter_program


def serve(control: socket.socket) -> None:
    """Serve until the controller hangs up; the children end with this process."""
    endpoint: BlockingEndpoint[ToForkServer] = BlockingEndpoint(control, ToForkServer)
    order = endpoint.next()
    if order is None:
        return
    if not isinstance(order, Preload):
        raise ProtocolError("The fork server was ordered to fork before it was told what to load.")
    [weights] = endpoint.take_descriptors(1)
    try:
        forkserver = ForkServer(endpoint, order, weights)
    except Exception as reason:
        endpoint.send(start_failed(reason, "The fork server cannot start"))
        return
    forkserver.run()


class ForkServer:
    """Loaded, alone in its namespaces, and ready to fork."""

    def __init__(self, endpoint: BlockingEndpoint[ToForkServer], preload: Preload, weights: int) -> None:
        use_pythons_memory()
        layers = available_layers()
        layers.require(allow_degraded=preload.allow_degraded)
        self._endpoint = endpoint
        self._allow_degraded = preload.allow_degraded
        self._model = child.load_model(preload, weights)
        devices = self._model.device.files
        if preload.meeting and devices:
            self._model.share(MEETING_PLACE)
        placement = self._model.device.placement
        os.close(weights)
        rehearse(self._model)
        for receives in (False, True):  # assembled once here, not once in every child, which is pid 1 of its namespace
            filter_program(receives_descriptors=receives, own_pid=1, futexes=links().upper_word)
        self._model.decoder.kernels.drop_scratch()
        gc.collect()
        give_back_freed_memory()  # every child would map it, and give it back page by page when it ends
        gc.freeze()  # so that no collection in a child writes to, and thereby copies, what it shares with all others
        if len(os.listdir("/proc/self/task")) != 1:
            raise SetupError("A library started a thread in the fork server, which could not fork safely.")
        leave_host()
        if devices:
            root_of_devices(devices, preload.meeting if placement.uses_mps else "")
        else:
            empty_root()
        self._living: dict[int, int] = {}
        decoder = self._model.decoder
        shape = decoder.cache_shape
        able = not decoder.device.partition_refusal(decoder)
        without = without_layers(self._model.device)
        missing = (*layers.missing, *(layer.value for layer in Layer if layer in without))
        facts = Preloaded(
            *(decoder.heads, shape.dim, shape.layers, able, missing),
            placement=placement,
            openings=self._model.openings,
        )
        endpoint.send(facts)

    def run(self) -> None:
        while (order := self._endpoint.next_or_readable(set(self._living))) is not None:
            if isinstance(order, set):
                self._reap(order)
            elif isinstance(order, Spawn):
                self._fork(order)
            elif isinstance(order, Ping):
                self._endpoint.send(Pong())
            else:
                raise ProtocolError("The fork server is loaded already.")

    def _fork(self, spawn: Spawn) -> None:
        descriptors = self._endpoint.take_descriptors(child.DESCRIPTORS[spawn.role] + spawn.disk + spawn.weights)
        fresh_pid_namespace()
        pid = os.fork()
        if not pid:
            child.live(spawn, self._model, descriptors, allow_degraded=self._allow_degraded)
        pidfd = os.pidfd_open(pid)
        self._living[pidfd] = pid
        for descriptor in descriptors:
            os.close(descriptor)
        self._endpoint.send(Spawned(spawn.child, pid), pidfd)

    def _reap(self, ended: set[int]) -> None:
        for pidfd in ended:
            os.waitpid(self._living.pop(pidfd), 0)
            os.close(pidfd)
