"""An engine's process without vLLM, `python fake_process.py FD`: the same order, engine and wire, another core.

A model whose folder has a file `refused` cannot be loaded.
"""

from __future__ import annotations

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


def prepare(order: StartEngine) -> Service:
    if (Path(order.path) / "refused").exists():
        raise ModelUnsupported("This engine does not know the model.", hint="Serve another.")
    core, settings = EchoCore(), EngineSettings.model_validate_json(order.settings)
    ready = Ready(core.vocabulary, core.max_context, core.blocks, core.block_tokens, "echo")
    return Service(VllmEngine(core, settings), ready, lost=lambda: True)


if __name__ == "__main__":
    process.prepare = prepare
    process.main(begin_child(process.ROLE))
