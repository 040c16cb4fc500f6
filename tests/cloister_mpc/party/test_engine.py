from __future__ import annotations

import subprocess
import sys

IMPORTS = """
import sys
from spu import Runtime
import cloister_mpc.model.generation, cloister_mpc.model.programs
import cloister_mpc.party.engine, cloister_mpc.party.weight_store
sys.exit("torch" in sys.modules)
"""


def test_an_engine_does_without_torch() -> None:
    """Its import would take seconds and memory at each of three parties, at every start."""
    assert subprocess.run([sys.executable, "-c", IMPORTS], check=False).returncode == 0
