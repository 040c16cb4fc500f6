"""Three parties as processes over TCP on this machine; this process deals random inputs, client and provider in one."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from cloister.errors import PartyLost, ProtocolError
from cloister_bench.mpc.cost import Cost, count_profiles, merge, read_profiles
from cloister_mpc.config import PARTIES
from cloister_mpc.local_parties import free_ports
from cloister_mpc.model.program_store import Program

_MAIN = re.compile(r"func\.func @main\((.*?)\) -> ", re.DOTALL)
_INPUT = re.compile(r"%arg\d+: tensor<((?:\d+x)*)(!pphlo\.secret<)?([a-z]+\d+)>")
_TYPES = {"f32": "float32", "i32": "int32", "i64": "int64", "ui32": "uint32", "i1": "bool"}


@dataclass(frozen=True, slots=True)
class Input:
    """Equal types cost the same, so one random array stands for all of a type."""

    shape: tuple[int, ...]
    dtype: str
    public: bool

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.shape)) or "scalar"
        return f"{'public' if self.public else 'secret'} {sizes} {self.dtype}"

    def draw(self) -> np.ndarray[Any, Any]:
        """So small that any product of them stays within the ring."""
        random = np.random.default_rng()
        if self.dtype == "float32":
            return (0.02 * random.standard_normal(self.shape, dtype=np.float32)).astype(np.float32)
        return random.integers(0, 2, self.shape).astype(self.dtype)


def inputs_of(code: bytes) -> list[Input]:
    """ProtocolError where the text is not a program of SPU's."""
    main = _MAIN.search(code.decode("utf-8", "replace"))
    if main is None:
        raise ProtocolError("A compiled program does not name its inputs.", hint="Is this another version of SPU?")
    found = _INPUT.findall(main[1])
    if len(found) != main[1].count("%arg") or any(kind not in _TYPES for _, _, kind in found):
        raise ProtocolError("A compiled program has inputs of unknown types.")
    return [
        Input(tuple(int(size) for size in sizes.split("x")[:-1]), _TYPES[kind], not secret)
        for sizes, secret, kind in found
    ]


LOG_SECONDS = 5.0  # a profile is written within milliseconds of its run's end
START_SECONDS = 120.0


class Parties:
    """Use it in a `with`: the processes end with the block."""

    def __init__(self) -> None:
        self.count = PARTIES
        self._folder = TemporaryDirectory(prefix="cloister-bench-mpc-")
        self._held: set[str] = set()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controls: list[Connection] = []

    def __enter__(self) -> Self:
        from cloister_mpc.shares import Dealer

        self._dealer = Dealer()
        try:
            for rank in range(self.count):
                self._start(rank)
            addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(self.count))
            self._call("join", [(rank, addresses) for rank in range(self.count)], START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for control in self._controls:
            control.close()
        for process in self._processes:
            process.kill()  # it holds nothing that must be put away
            process.wait()
        self._folder.cleanup()

    def hold(self, kind: Input) -> str:
        """The name of random numbers of this type: shared secretly, or so that every party knows them."""
        name = str(kind)
        if name not in self._held:
            drawn = kind.draw()
            shares = [self._dealer.publish(drawn)] * self.count if kind.public else self._dealer.deal(drawn)
            self._call("keep", [(name, share.meta, list(share.share_chunks)) for share in shares])
            self._held.add(name)
        return name

    def run(self, programs: Sequence[Program]) -> list[Cost]:
        """Run in sequence without a message in between."""
        executables = tuple(self._executable(program) for program in programs)
        begins = [log.stat().st_size for log in self._logs]
        seconds = self._call("run", [(executables,)] * self.count)
        logs = [_read_log(log, begin, len(programs)) for log, begin in zip(self._logs, begins, strict=True)]
        profiles = zip(*map(read_profiles, logs), strict=True)
        return [merge(each, cpu) for each, cpu in zip(profiles, zip(*seconds, strict=True), strict=True)]

    def _executable(self, program: Program) -> bytes:
        from spu import libspu

        names = [self.hold(kind) for kind in inputs_of(program.code)]
        outputs = [f"out/{number}" for number in range(len(program.outputs))]
        made = libspu.Executable(name=program.name, input_names=names, output_names=outputs, code=program.code)
        serialised: bytes = made.SerializeToString()
        return serialised

    @property
    def _logs(self) -> list[Path]:
        return [Path(self._folder.name) / f"party-{rank}.log" for rank in range(self.count)]

    def _start(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "cloister_bench.mpc.party", str(theirs.fileno())]
        with theirs, self._logs[rank].open("wb") as log:
            self._controls.append(Connection(ours.detach()))
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(theirs.fileno(),))
            )

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]], seconds: float | None = None) -> list[Any]:
        try:
            for control, given in zip(self._controls, arguments, strict=True):
                control.send((method, *given))
            if not all(control.poll(seconds) for control in self._controls):
                raise PartyLost("A party does not answer.", hint="Is the machine overloaded?")
            replies = [control.recv() for control in self._controls]
        except (EOFError, ConnectionError):
            raise PartyLost("A party ended.", hint="Memory may have run out: measure shorter sequences.") from None
        for rank, (_, failure) in enumerate(replies):
            if failure:
                raise PartyLost(f"Party {rank} failed: {' '.join(failure.split())[:300]}")
        return [result for result, _ in replies]


def _read_log(log: Path, begin: int, runs: int) -> str:
    deadline = time.monotonic() + LOG_SECONDS
    while True:
        with log.open("rb") as file:
            file.seek(begin)
            text = file.read().decode("utf-8", "replace")
        if count_profiles(text) >= runs or time.monotonic() > deadline:
            return text
        time.sleep(0.005)
