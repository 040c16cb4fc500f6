"""An engine's process without vLLM, `python fake_process.py FD`: the same order, engine and wire, another core.

A model whose folder has a file `refused` cannot be loaded. With a file `asks` in it, our own engine plays the other
one: it asks vaults; with `lies`, too, it decodes wrongly.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from cloister.config import EngineSettings
from cloister.errors import ModelUnsupported
from cloister.messages.controller_engine import StartEngine
from cloister.messages.generation import Ready
from cloister.process.hardening import begin_child
from cloister.service.process import Service
from cloister_vllm import process
from cloister_vllm.engine import VllmEngine
from tests.cloister_vllm.fake_core import EchoCore


def prepare(order: StartEngine, control: socket.socket) -> Service:
    if (Path(order.path) / "refused").exists():
        raise ModelUnsupported("This engine does not know the model.", hint="Serve another.")
    if (Path(order.path) / "asks").exists():
        return played(order)
    core, settings = EchoCore(), EngineSettings.model_validate_json(order.settings)
    core.asks_vaults = False
    numbers = core.vocabulary, core.max_context, core.blocks, core.block_tokens
    ready = Ready(*numbers, "echo", asks_vaults=core.asks_vaults, lacks=("no_swap",))
    return Service(VllmEngine(core, settings), ready, lost=lambda: True)


def played(order: StartEngine) -> Service:
    from cloister.compute.choose import choose_device
    from cloister.models.decoder import RawParts
    from cloister.models.load import load_decoder
    from cloister.models.source import open_folder
    from cloister.models.weights import open_weights
    from cloister.service.prepare import prepare as prepare_own

    settings, folder = EngineSettings.model_validate_json(order.settings), open_folder(Path(order.path), "tiny")
    device = choose_device(settings.model_copy(update={"threads": 1, "kernels": "native"}))
    decoder = load_decoder(folder, RawParts(open_weights(folder), device.kernels), device)
    if (Path(order.path) / "lies").exists():
        logits = decoder.logits
        decoder.logits = lambda hidden: logits(hidden).flip(-1)  # type: ignore[method-assign]
    return prepare_own(decoder, settings)


if __name__ == "__main__":
    process.prepare = prepare
    process.main(begin_child(process.ROLE))
