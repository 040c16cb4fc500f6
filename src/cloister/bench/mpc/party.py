"""A party that is measured (`python -m cloister.bench.mpc.party FD`): holds shares and runs what it is told.

It trusts the bench that started it and is not for serving: it takes executables, and its lines are not encrypted. Its
log (standard output) is where SPU's profiler writes.
"""

from __future__ import annotations

import socket
import sys
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import msgspec

from cloister.bench.mpc.orders import Answer, Done, Drop, Failed, Join, Keep, Order, Run, ShareFile, Show
from cloister.bench.mpc.protocol import settings_of
from cloister.messages.frames import FrameReader, encode_frame
from cloister.process.hardening import die_with_parent

PATIENCE_MS = 20 * 60 * 1000


class Party:
    """Serves one bench until it hangs up."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._link: Any = None
        self._runtime: Any = None

    def serve(self) -> None:
        reader: FrameReader[Order] = FrameReader(Order)
        while data := self._control.recv(65536):
            for order in reader.feed(data):
                self._control.sendall(encode_frame((self._answer(order),)))

    def _answer(self, order: Order) -> Answer:
        try:
            return Done(tuple(self._obey(order) or ()))
        except (RuntimeError, LookupError, ValueError) as wrong:  # how libspu's own exceptions arrive
            return Failed(str(wrong)[:2000] or type(wrong).__name__)

    def _obey(self, order: Order) -> list[float] | None:
        match order:
            case Join():
                self._join(order)
            case Keep(name, file):
                self._runtime.set_var(name, _read_share(Path(file)))
            case Run(files):
                return self._run([Path(file).read_bytes() for file in files])
            case Show(name, file):
                share = self._runtime.get_var(name)
                Path(file).write_bytes(msgspec.msgpack.encode(ShareFile(share.meta, list(share.share_chunks))))
            case Drop(names):
                for name in names:
                    self._runtime.del_var(name)
        return None

    def _join(self, order: Join) -> None:
        from spu import Runtime, libspu

        lines = libspu.link.Desc()
        lines.recv_timeout_ms = lines.http_timeout_ms = PATIENCE_MS
        for rank, address in enumerate(order.addresses):
            lines.add_party(f"party-{rank}", address)
        self._link = libspu.link.create_brpc(lines, order.rank)
        self._runtime = Runtime(self._link, settings_of(order.protocol, profile=True))

    def _run(self, programs: list[bytes]) -> list[float]:
        from spu import libspu

        executables = [libspu.Executable() for _ in programs]
        for executable, program in zip(executables, programs, strict=True):
            executable.ParseFromString(program)
        self._link.barrier()  # the profiler's clock should not run while another still reads its programs
        times = [process_time()]
        for executable in executables:
            self._runtime.run(executable)
            times.append(process_time())
        return [end - begin for begin, end in pairwise(times)]


def _read_share(file: Path) -> Any:
    from spu import libspu

    found = msgspec.msgpack.decode(file.read_bytes(), type=ShareFile)
    share = libspu.Share()
    share.meta, share.share_chunks = found.meta, found.chunks
    return share


def main() -> None:
    """The bench's socket is named on the command line."""
    die_with_parent()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        Party(control).serve()


if __name__ == "__main__":
    main()
