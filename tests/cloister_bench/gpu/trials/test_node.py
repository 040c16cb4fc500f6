"""What trials with a node do that needs no GPU: how they compare answers, and that the node ends with them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from cloister_bench.gpu.trials.node import Answer, divergence


def test_the_first_step_that_differs_is_found_and_says_whether_the_logits_do() -> None:
    right: Answer = [("a", -1.0, [("a", -1.0)]), ("b", -2.0, [("c", -1.5)]), ("d", -1.0, [("d", -1.0)])]
    assert divergence(right, right) is None
    drawn = [right[0], ("c", -1.5, [("c", -1.5)]), ("e", -9.0, [("e", -9.0)])]
    assert divergence(drawn, right)["step"] == 1 and not divergence(drawn, right)["logits_differ"]
    computed = [right[0], ("b", -2.0, [("c", -1.4)]), right[2]]
    found = divergence(computed, right)
    assert found["step"] == 1 and found["logits_differ"] and found["later"] == 0
    assert divergence([*computed[:2], ("d", -1.1, [("d", -1.1)])], right)["later"] == 1
    assert divergence(right[:2], right)["lengths_differ"]


def test_a_node_ends_with_the_trial_that_started_it() -> None:
    starts = (
        "import subprocess, sys; from cloister_bench.gpu.trials import node as m;"
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
