"""What a process that serves the network can still do, and what it cannot: tried from inside, a process an attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import ctypes, os, signal, socket, subprocess, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
caller = socket.create_connection(listener.getsockname())
mine = open(sys.argv[1] + "/mine", "w")
if "--free" not in sys.argv:
    from cloister.process.sandbox.confinement import confine
    assert confine() == (), confine
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""
STILL = {
    "accepts": "listener.accept()[0].sendall(b'x'); assert caller.recv(1) == b'x'",
    "starts threads": "t = threading.Thread(target=int); t.start(); t.join()",
    "tells itself to end": "signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); "
    "signal.raise_signal(signal.SIGTERM); os._exit(1)",
    "writes what is open": "mine.write('x'); mine.flush()",
}
NO_MORE = {
    "reads a file that everybody may read": "open('/etc/passwd').read()",
    "reads code": "import wave",
    "changes a file": "open(sys.argv[1] + '/there', 'a').write('x')",
    "makes a file": "open(sys.argv[1] + '/new', 'w')",
    "removes a file": "os.unlink(sys.argv[1] + '/there')",
    "renames a file": "os.rename(sys.argv[1] + '/there', sys.argv[1] + '/elsewhere')",
    "makes a link": "os.symlink('/', sys.argv[1] + '/link')",
    "forks": "os.fork()",
    "executes": "os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    "starts a program": "subprocess.run([sys.executable, '-c', 'pass'])",
    "connects": "socket.create_connection(listener.getsockname())",
    "listens": "socket.create_server(('127.0.0.1', 0))",
    "signals another": "os.kill(os.getppid(), 0)",
    "traces another": "check(libc.ptrace(16, os.getppid(), 0, 0))",
    "reads another's memory": "check(libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0))",
    "leaves its namespaces": "check(libc.unshare(0x10000000))",
}
AS_ROOT = {
    "is root": "os._exit(os.geteuid() != 0)",
    "becomes another": "os.setuid(1000)",
    "owns a file": "os.chown(sys.argv[1] + '/there', 1, 1)",
    "roots elsewhere": "os.chroot('/')",
}


def ran(folder: Path, attempt: str, *arguments: str) -> int:
    (folder / "there").write_text("as it was")
    (folder / "there").chmod(0o666)
    command = [sys.executable, "-c", BEGIN + attempt, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.parametrize("attempt", STILL)
def test_it_can_still_serve(tmp_path: Path, attempt: str) -> None:
    assert ran(tmp_path, STILL[attempt]) == 0


@pytest.mark.parametrize("attempt", NO_MORE)
def test_it_can_do_no_more_than_that(tmp_path: Path, attempt: str) -> None:
    assert ran(tmp_path, NO_MORE[attempt]) != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "there"]
    assert (tmp_path / "there").read_text() == "as it was"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has these rights to give up")
@pytest.mark.parametrize("attempt", AS_ROOT)
def test_root_is_nobody_special_any_more(tmp_path: Path, attempt: str) -> None:
    assert ran(tmp_path, AS_ROOT[attempt]) != 0


def test_with_another_thread_it_says_what_is_missing(tmp_path: Path) -> None:
    """A thread that was there before keeps its rights: whoever confines itself must not think otherwise."""
    begin = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    says = "from cloister.process.sandbox.confinement import confine\nmissing = confine()\n"
    check = "import os\nos._exit(not {'landlock', 'capabilities'} <= set(missing))"
    assert subprocess.run([sys.executable, "-c", begin + says + check], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    "attempt",
    [
        "reads a file that everybody may read",
        "changes a file",
        "removes a file",
        "forks",
        "starts a program",
        "connects",
    ],
)
def test_without_confinement_attempts_succeed(tmp_path: Path, attempt: str) -> None:
    assert ran(tmp_path, NO_MORE[attempt], "--free") == 0
