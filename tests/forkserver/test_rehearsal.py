"""After the rehearsal nothing is imported and no file opened, whatever is asked of a vault: a sealed one could not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.forkserver.model import save_model

PLAYED = """
import os, sys
from itertools import count
from cloister.compute.base import LinkAnswerer
from cloister.config import EngineSettings
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.forkserver import child, rehearsal
from cloister.levels import ISOLATED, PARTITIONED
from cloister.messages.controller_forkserver import Preload
from cloister.messages.controller_packer import Start
from cloister.messages.controller_vault import AssignPrompt
from cloister.messages.prompts import write_prompt
from cloister.messages.types import VERSION
from cloister.models.memory_file import create_memory_file, reopen_read_only, seal
from cloister.models.pack_weights import pack_weights
from cloister.vault.process import Vault

path = sys.argv[1]
settings = EngineSettings(kv_cache_mib=8, vault_kv_mib=8, threads=1).model_dump_json().encode()
weights = create_memory_file("weights")
pack_weights(Start("tiny", path, settings), weights)
seal(weights)
model = child.load_model(Preload("tiny", path, settings), reopen_read_only(weights))
rehearsal.rehearse(model)
runner = ModelRunner(model.decoder, reserve_cache(model.decoder, 8))
vault = Vault(model.decoder, model.reading, model.settings, runner, LinkAnswerer(slots=1))
used = []
sys.addaudithook(lambda event, about: event in ("import", "open", "ctypes.dlopen") and used.append((event, about[0])))
numbers = count(1)
for level in (PARTITIONED, ISOLATED):
    for prompt in rehearsal.PROMPTS:
        for params in rehearsal.WAYS:
            rehearsal._play(vault, AssignPrompt(next(numbers), level, write_prompt(prompt), params))
    for field, written in rehearsal.SEALED:
        locked = rehearsal._locked(field, written, bytearray(32))
        rehearsal._play(vault, AssignPrompt(next(numbers), level, locked, rehearsal.WAYS[0]))
for _ in vault._obfuscating._detected("Dr. Zoë Lee of Ghent, 4111 1111 1111 1111"):
    pass
os.write(1, repr(used).encode())
open("/dev/null").close()
assert used, "nobody listens"
os._exit(0)
"""


def test_what_was_rehearsed_needs_no_file_and_no_import(tmp_path: Path) -> None:
    """Of a model that torch's own modules compute between our kernels."""
    save_model(tmp_path, "phi")
    done = subprocess.run([sys.executable, "-c", PLAYED, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]"), done.stderr
