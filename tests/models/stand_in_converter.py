"""Run by a test in the converter's place: `hang` writes a little, says so and does not end; `die` dies unheard.

It loads no torch, which takes the real one seconds.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cloister.messages.cli_converter import ConversionProgress, Convert
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child

if __name__ == "__main__":
    control: BlockingEndpoint[Convert] = BlockingEndpoint(begin_child("converter"), Convert)
    if os.environ["CLOISTER_STAND_IN"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    order = control.next()
    assert order is not None
    (Path(order.folder) / "model.safetensors").write_bytes(b"half a model")
    control.send(ConversionProgress(0.5))
    print("half", flush=True)
    signal.alarm(300)  # should nobody end it, the test fails, and this process does not stay
    signal.pause()
