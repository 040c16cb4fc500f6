"""The engine's process, `python -m cloister_vllm.process FD` in vLLM's environment: it reads the order, is confined,
loads vLLM, and then speaks the service's wire (cloister.messages.controller_service)."""

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
        service = prepare(order)
    except Exception as error:
        control.sendall(encode_frame((start_failed(error, "The engine vllm cannot start"),)))
        return
    service.run(control)


def prepare(order: StartEngine) -> Service:
    from cloister_vllm.confine import confine

    confine()
    from cloister_vllm.engine import VllmEngine
    from cloister_vllm.names import open_core

    settings = EngineSettings.model_validate_json(order.settings)
    core = open_core(Path(order.path), settings)
    ready = Ready(core.vocabulary, core.max_context, core.blocks, core.block_tokens, "vllm")
    return Service(VllmEngine(core, settings), ready, lost=lambda: True)


if __name__ == "__main__":
    main(begin_child(ROLE))
