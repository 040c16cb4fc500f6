"""Finding out which layers this machine offers: by sealing a process that does nothing."""

from __future__ import annotations

import json
import os

from cloister.process.sandbox.layers import Layer, Profile, Report
from cloister.process.sandbox.namespaces import empty_root, enter_own, fresh_pid_namespace, leave_host
from cloister.process.sandbox.seal import seal


def available_layers() -> Report:
    """What a vault would get here, started by this user."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _as_forkserver(writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return Report.of(Layer(name) for name in json.loads(told or "[]"))


def _as_forkserver(writer: int) -> None:
    try:
        leave_host()
        empty_root()
        fresh_pid_namespace()
        child = os.fork()
        if child:
            os.close(writer)
            os.waitpid(child, 0)
        else:
            _as_child(writer)
    finally:
        os._exit(0)


def _as_child(writer: int) -> None:
    enter_own()
    report = seal(Profile("vault", {writer}, data_bytes=1 << 24, allow_degraded=True))
    os.write(writer, json.dumps(report.applied).encode())
