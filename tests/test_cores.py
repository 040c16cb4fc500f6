"""Who may use some of a machine's cores starts threads for these."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from cloister.config import EngineSettings
from cloister.cores import usable_cores
assert usable_cores() == 1 == EngineSettings().cores, (usable_cores(), os.cpu_count())
"""


def test_cores_that_this_process_may_not_use_do_not_count() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
