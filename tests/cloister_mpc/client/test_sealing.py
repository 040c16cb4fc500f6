"""What a client can still do once it has shut itself in, asked of a process that did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.process.sandbox.landlock import abi

PROBE = """
import json, os, socket, subprocess, sys, threading
from cloister_mpc.client.process import forbid_writing_and_executing
sealed = forbid_writing_and_executing()
def outcome(what):
    try:
        what()
        return "done"
    except OSError as wrong:
        return type(wrong).__name__
found = {}
def look():
    found["write"] = outcome(lambda: open(sys.argv[1] + "/made", "w"))
    found["append"] = outcome(lambda: open(sys.argv[1] + "/there", "a"))
    found["null"] = outcome(lambda: open(os.devnull, "w+"))
    found["remove"] = outcome(lambda: os.remove(sys.argv[1] + "/there"))
    found["read"] = outcome(lambda: open(sys.argv[1] + "/there").read())
    found["execute"] = outcome(lambda: os.execv("/bin/true", ["true"]))
    found["connect"] = outcome(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[2]))))
thread = threading.Thread(target=look)
thread.start()
thread.join()
print(json.dumps({"sealed": sealed, **found}))
"""


def test_it_reads_and_connects_and_no_more(tmp_path: Path) -> None:
    import socket

    if not abi():
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "there").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", PROBE, str(tmp_path), str(listener.getsockname()[1])]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    refused = "PermissionError"
    assert found == {
        "sealed": True,
        "write": refused,
        "append": refused,
        "null": "done",
        "remove": refused,
        "read": "done",
        "execute": refused,
        "connect": "done",
    }
