"""Whether a vault can write the weights that all processes on a GPU read: each way tried, sealed; and once not sealed.
A maker copies a file to the GPU as the service does. A vault maps it, is sealed by the filter that vaults have, and
tries to write. Noted: the result of the attempt, and whether the weights changed or their maker fell with the vault."""

import argparse
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from cloister.placement import Role
from cloister_bench.gpu.mps import mps, pipe_folder

SIZE = 64 * 2**20
PATIENCE_S = 60.0
# ask for the right to write; import the handle again with it; have the driver copy; write by a kernel
WAYS = ("access", "import", "copy", "kernel")


def forked(role: Callable[[socket.socket], None]) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            role(theirs)
        except BaseException as failure:
            theirs.sendall(f"{type(failure).__name__}: {str(failure)[:200]}".encode())
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(PATIENCE_S)
    return pid, ours


def opened(role: Role) -> None:
    from cloister.compute.gpu.device import GpuDevice

    device = GpuDevice()
    device.share(pipe_folder(), 1)
    device.open(role)


def file() -> Any:
    import torch

    return torch.arange(SIZE // 8, dtype=torch.int64).view(torch.uint8)


def maker(control: socket.socket) -> None:
    """Sends the descriptor, then on request what the weights' words add up to."""
    import torch

    from cloister.compute.gpu.weights import SharedWeights

    opened("service")
    data = file()
    held = SharedWeights.copied(data)
    descriptor = held.export()
    socket.send_fds(control, [b"w"], [descriptor])
    part = held.find(data)
    assert part is not None
    while control.recv(1):
        control.sendall(str(int(part.view(torch.int64).sum())).encode())


def vault(control: socket.socket, descriptor: int, way: str, *, sealed: bool) -> None:
    import torch
    from cuda.bindings import driver

    from cloister.compute.gpu.memory import SharedMemory
    from cloister.process.sandbox import kernel, seccomp
    from cloister.process.sandbox.kernel import prctl

    opened("vault")
    held = SharedMemory.adopt(descriptor, SIZE, writes=False)
    words, ours = held.bytes.view(torch.int64), torch.zeros(SIZE // 8, dtype=torch.int64, device="cuda")
    before = int(words.sum())
    ours.add_(1)
    torch.cuda.synchronize()
    if sealed:
        prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        assert seccomp.install(False, None) and not seccomp.devices_answer()
    assert int(words.sum()) == before, "it cannot read"
    try:
        if way == "access":
            held._allow(driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            words.add_(1)
        elif way == "import":
            SharedMemory.adopt(descriptor, SIZE).bytes.view(torch.int64).add_(1)
        elif way == "copy":
            (error,) = driver.cuMemcpyHtoD(held.address, b"\1" * 4096, 4096)
            if error:
                raise RuntimeError(error.name)
        else:
            words.add_(1)
        torch.cuda.synchronize()
        result = "written"
    except Exception as failure:
        result = f"refused: {str(failure)[:80]}"
    control.sendall(result.encode())
    control.recv(1)


def said(by: socket.socket, ask: bytes = b"") -> str:
    try:
        if ask:
            by.sendall(ask)
        return by.recv(4096).decode()
    except OSError as failure:
        return type(failure).__name__


def weights(options: argparse.Namespace, note: Callable[[str, Any], None]) -> None:
    rows = []
    right = str(sum(range(SIZE // 8)))
    for way, sealed in [*((way, True) for way in WAYS), ("access", False)]:
        with mps():
            (first, making) = forked(maker)
            _, [descriptor], _, _ = socket.recv_fds(making, 1, 1)
            attempt = partial(vault, descriptor=descriptor, way=way, sealed=sealed)
            (second, trial) = forked(attempt)
            result, after = said(trial), said(making, b"?")
            found = "as before" if after == right else "changed" if after.isdigit() else "their maker fell"
            rows.append({"way": way, "sealed": sealed, "result": result, "after": found})
            note("weights", rows)
            os.close(descriptor)
            for pid, each in ((second, trial), (first, making)):
                each.close()
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
