"""A party that is measured (`python -m cloister_bench.mpc.party FD`), and its messages.

It trusts the bench that started it and is not for serving: it runs any executable it is given, and its connections are
not encrypted. SPU's profiler writes to its log (standard output).
"""

from __future__ import annotations

import sys
from itertools import pairwise
from multiprocessing.connection import Connection
from time import process_time
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from cloister.process.hardening import die_with_parent
from cloister_mpc.config import Protocol

PATIENCE_MS = 20 * 60 * 1000
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class Join(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """First: which party this is, and where all of them listen."""

    rank: Annotated[int, Meta(ge=0, le=2)]
    addresses: Annotated[tuple[Name, ...], Meta(min_length=2, max_length=3)]
    protocol: Protocol


class Keep(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Hold a share, as SPU writes it, under a name."""

    name: Name
    meta: bytes
    chunks: list[bytes]


class Run(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Run these executables in sequence; the log says what each cost."""

    executables: Annotated[tuple[bytes, ...], Meta(max_length=4096)]


class Done(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """It was done. For runs: the processor's time that each took."""

    cpu_seconds: Annotated[tuple[float, ...], Meta(max_length=4096)] = ()


class Failed(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """It was not; SPU's words, which speak of shapes and connections only."""

    reason: Annotated[str, Meta(max_length=2000)]


Request = Join | Keep | Run
Reply = Done | Failed


class Party:
    """Serves one bench until it hangs up."""

    def __init__(self) -> None:
        self._link: Any = None
        self._runtime: Any = None

    def reply(self, request: Request) -> Reply:
        try:
            match request:
                case Join():
                    self._join(request)
                case Keep():
                    self._keep(request)
                case Run(executables):
                    return Done(self._run(executables))
            return Done()
        except (RuntimeError, LookupError, ValueError) as wrong:  # how libspu's own exceptions arrive
            return Failed(str(wrong)[:2000] or type(wrong).__name__)

    def _join(self, order: Join) -> None:
        from spu import Runtime, libspu

        from cloister_mpc.shares import runtime_config

        links = libspu.link.Desc()
        links.recv_timeout_ms = links.http_timeout_ms = PATIENCE_MS
        for rank, address in enumerate(order.addresses):
            links.add_party(f"party-{rank}", address)
        self._link = libspu.link.create_brpc(links, order.rank)
        settings = runtime_config(order.protocol)
        settings.enable_pphlo_profile = True  # every run writes what each operator cost
        self._runtime = Runtime(self._link, settings)

    def _keep(self, order: Keep) -> None:
        from spu import libspu

        share = libspu.Share()
        share.meta, share.share_chunks = order.meta, order.chunks
        self._runtime.set_var(order.name, share)

    def _run(self, programs: tuple[bytes, ...]) -> tuple[float, ...]:
        from spu import libspu

        executables = [libspu.Executable() for _ in programs]
        for executable, program in zip(executables, programs, strict=True):
            executable.ParseFromString(program)
        self._link.barrier()  # the profiler's clock should not run while another still reads its programs
        times = [process_time()]
        for executable in executables:
            self._runtime.run(executable)
            times.append(process_time())
        return tuple(end - begin for begin, end in pairwise(times))


def main() -> None:
    die_with_parent()
    party = Party()
    with Connection(int(sys.argv[1])) as control:
        while True:
            try:
                request = msgspec.msgpack.decode(control.recv_bytes(), type=Request)
            except EOFError:
                return
            control.send_bytes(msgspec.msgpack.encode(party.reply(request)))


if __name__ == "__main__":
    main()
