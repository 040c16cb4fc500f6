"""A party that is measured: `python -m cloister_bench.mpc.party FD`. Not for serving: it trusts the benchmark, runs any
executable, and its connections are not encrypted. SPU's profiler writes to standard output."""

import sys
from itertools import pairwise
from multiprocessing.connection import Connection
from time import process_time
from typing import Any

from cloister.process.hardening import die_with_parent

PATIENCE_MS = 20 * 60 * 1000


class Party:
    def __init__(self) -> None:
        self._link: Any = None
        self._runtime: Any = None

    def reply(self, method: str, *given: Any) -> tuple[Any, str]:
        """The method's result, and why it failed: SPU's words, which speak of shapes and connections."""
        try:
            return getattr(self, method)(*given), ""
        except (RuntimeError, LookupError, ValueError) as wrong:  # how libspu's own exceptions arrive
            return None, str(wrong) or type(wrong).__name__

    def join(self, rank: int, addresses: tuple[str, ...]) -> None:
        from spu import Runtime, libspu

        from cloister_mpc.shares import runtime_config

        links = libspu.link.Desc()
        links.recv_timeout_ms = links.http_timeout_ms = PATIENCE_MS
        for number, address in enumerate(addresses):
            links.add_party(f"party-{number}", address)
        self._link = libspu.link.create_brpc(links, rank)
        settings = runtime_config()
        settings.enable_pphlo_profile = True  # every run writes what each operator cost
        self._runtime = Runtime(self._link, settings)

    def keep(self, name: str, meta: bytes, chunks: list[bytes]) -> None:
        from spu import libspu

        share = libspu.Share()
        share.meta, share.share_chunks = meta, chunks
        self._runtime.set_var(name, share)

    def run(self, programs: tuple[bytes, ...]) -> tuple[float, ...]:
        """The processor's seconds of each, run in sequence. The log has the other costs."""
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
                control.send(party.reply(*control.recv()))
            except EOFError:
                return


if __name__ == "__main__":
    main()
