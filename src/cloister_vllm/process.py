"""The engine's process, `python -m cloister_vllm.process FD` in vLLM's environment: it reads the order, leaves the
host's namespaces, loads vLLM and warms it up, is sealed, and then speaks the service's wire (controller_service)."""

import socket
from pathlib import Path

from cloister.config import EngineSettings
from cloister.errors import ProtocolError
from cloister.messages.controller_engine import StartEngine
from cloister.messages.frames import encode_frame
from cloister.messages.generation import Ready
from cloister.messages.lifecycle import start_failed
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child
from cloister.service.process import Service

ROLE = "engine"


def main(control: socket.socket) -> None:
    order = BlockingEndpoint[StartEngine](control, StartEngine).next()
    if order is None:
        return
    if not isinstance(order, StartEngine):
        raise ProtocolError("The engine's first order must name the model.")
    try:
        service = prepare(order, control)
    except Exception as error:
        control.sendall(encode_frame((start_failed(error, "The engine vllm cannot start"),)))
        return
    service.run(control)


def prepare(order: StartEngine, control: socket.socket) -> Service:
    from cloister_vllm.confine import confine, seal_engine, without_seal

    settings = EngineSettings.model_validate_json(order.settings)
    take_files = confine()
    if several := settings.tensor_parallel > 1:
        report = without_seal(allow_degraded=order.allow_degraded)
    from cloister_vllm.engine import VllmEngine
    from cloister_vllm.names import open_core
    from cloister_vllm.warming import warm

    core = open_core(Path(order.path), settings)
    warm(core, settings)
    engine = VllmEngine(core, settings)
    if not several:
        report = seal_engine(take_files, control, allow_degraded=order.allow_degraded)
    numbers = core.vocabulary, core.max_context, core.blocks, core.block_tokens
    ready = Ready(*numbers, "vllm", asks_vaults=core.asks_vaults, lacks=report.missing)
    return Service(engine, ready, lost=lambda: True)


if __name__ == "__main__":
    main(begin_child(ROLE))
