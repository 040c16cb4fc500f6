"""What `scripts/gpu_serve.py` does that needs no GPU: how it compares answers, and that its node ends with it."""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "scripts/gpu_serve.py"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_serve", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_step_that_differs_is_found_and_says_whether_the_logits_do() -> None:
    divergence = _script().divergence
    right = [("a", -1.0, [("a", -1.0)]), ("b", -2.0, [("c", -1.5)]), ("d", -1.0, [("d", -1.0)])]
    assert divergence(right, right) is None
    drawn = [right[0], ("c", -1.5, [("c", -1.5)]), ("e", -9.0, [("e", -9.0)])]
    assert divergence(drawn, right)["step"] == 1 and not divergence(drawn, right)["logits_differ"]
    computed = [right[0], ("b", -2.0, [("c", -1.4)]), right[2]]
    found = divergence(computed, right)
    assert found["step"] == 1 and found["logits_differ"] and found["later"] == 0
    assert divergence([*computed[:2], ("d", -1.1, [("d", -1.1)])], right)["later"] == 1
    assert divergence(right[:2], right)["lengths_differ"]


def test_a_node_ends_with_the_script_that_started_it() -> None:
    starts = (
        f"import importlib.util as u, subprocess, sys; s = u.spec_from_file_location('g', {str(SCRIPT)!r});"
        "m = u.module_from_spec(s); s.loader.exec_module(m);"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; print(1, flush=True); signal.pause()'],"
        " start_new_session=True, preexec_fn=m.end_with_parent, stdout=subprocess.PIPE);"
        "p.stdout.read(1); print(p.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    node = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert select.select([node], [], [], 20)[0]
    finally:
        os.close(node)
        parent.stdout.close()
