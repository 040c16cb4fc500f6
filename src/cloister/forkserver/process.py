"""The fork server's life: load, rehearse, leave the host, then fork children on order."""

import os
import socket

from cloister.errors import ProtocolError
from cloister.forkserver import child
from cloister.forkserver.child import PreloadedModel, without_layers
from cloister.forkserver.rehearsal import rehearse
from cloister.link.memory import links
from cloister.messages.controller_forkserver import Preload, Preloaded, Spawn, Spawned, ToForkServer
from cloister.messages.lifecycle import start_failed
from cloister.process.blocking import BlockingEndpoint
from cloister.process.fork_loop import fork_on_order, forked, prepare_to_fork
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
    """The children end with this process."""
    endpoint: BlockingEndpoint[ToForkServer] = BlockingEndpoint(control, ToForkServer)
    order = endpoint.next()
    if order is None:
        return
    if not isinstance(order, Preload):
        raise ProtocolError("The fork server's first order must name the model to load.")
    [weights] = endpoint.take_descriptors(1)
    try:
        model, facts = preload(order, weights)
    except Exception as reason:
        endpoint.send(start_failed(reason, "The fork server cannot start"))
        return
    endpoint.send(facts)

    def fork(spawn: Spawn) -> tuple[int, Spawned]:
        if not isinstance(spawn, Spawn):
            raise ProtocolError("The fork server has loaded its model already.")
        descriptors = endpoint.take_descriptors(child.DESCRIPTORS[spawn.role] + spawn.weights)
        fresh_pid_namespace()
        pid = forked(descriptors, lambda: child.live(spawn, model, descriptors, allow_degraded=order.allow_degraded))
        return pid, Spawned(spawn.child)

    fork_on_order(endpoint, fork)


def preload(order: Preload, weights: int) -> tuple[PreloadedModel, Preloaded]:
    """Afterwards this process is alone in its namespaces, and ready to fork."""
    use_pythons_memory()
    layers = available_layers()
    layers.require(allow_degraded=order.allow_degraded)
    model = child.load_model(order, weights)
    device, decoder = model.device, model.decoder
    if order.meeting and device.files:
        model.share(MEETING_PLACE)
    os.close(weights)
    rehearse(model)
    model = model.with_vault()
    for receives in (False, True):  # assembled once here, not once in every child, which is pid 1 of its namespace
        filter_program(receives_descriptors=receives, own_pid=1, futexes=links().upper_word)
    decoder.kernels.drop_scratch()
    prepare_to_fork("fork server")
    leave_host()
    if device.files:
        root_of_devices(device.files, order.meeting if device.placement.uses_mps else "")
    else:
        empty_root()
    without = without_layers(device)
    facts = Preloaded(
        decoder.heads,
        decoder.cache_shape.dim,
        decoder.cache_shape.layers,
        not device.partition_refusal(decoder),
        (*layers.missing, *(layer.value for layer in Layer if layer in without)),
        placement=device.placement,
        openings=model.openings,
    )
    return model, facts
