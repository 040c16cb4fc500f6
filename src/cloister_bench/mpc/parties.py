"""Three parties as threads of this process, over memory: for measurements and tests, never for serving, since they
share a memory. SPU's profiler writes to standard output, which `cost_of` reads."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Self, TypeVar
from uuid import uuid4

import numpy as np
from spu import Runtime, libspu

from cloister.errors import PartyLost, ProtocolError
from cloister_bench.mpc.cost import Cost, read_profile
from cloister_mpc.config import PARTIES
from cloister_mpc.model.program_store import Program
from cloister_mpc.shares import Dealer, runtime_config

_MAIN = re.compile(r"func\.func @main\((.*?)\) -> ", re.DOTALL)
_INPUT = re.compile(r"%arg\d+: tensor<((?:\d+x)*)(!pphlo\.secret<)?([a-z]+\d+)>")
_TYPES = {"f32": "float32", "i32": "int32", "i64": "int64", "ui32": "uint32", "i1": "bool"}
PROFILE_S = 5.0  # a profile is written within milliseconds of its run's end

T = TypeVar("T")


class Input(NamedTuple):
    """Equal types cost the same, so one random array stands for all of a type."""

    shape: tuple[int, ...]
    dtype: str
    public: bool

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


class Parties:
    def __init__(self, *, profile: bool = False) -> None:
        self.dealer = Dealer()
        self._pool = ThreadPoolExecutor(PARTIES)
        self._held: set[str] = set()
        links, settings = libspu.link.Desc(), runtime_config()
        links.id = uuid4().hex  # links in memory are found by this name
        settings.enable_pphlo_profile = profile
        for rank in range(PARTIES):
            links.add_party(f"party-{rank}", f"thread:{rank}")
        self.links = list(self._pool.map(lambda rank: libspu.link.create_mem(links, rank), range(PARTIES)))
        self.runtimes = list(self._pool.map(lambda link: Runtime(link, settings), self.links))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.runtimes.clear()  # they have no way to forget, but end with their last holder
        self._pool.shutdown()

    def put(self, name: str, values: np.ndarray[Any, Any]) -> None:
        for runtime, share in zip(self.runtimes, self.dealer.deal(values), strict=True):
            runtime.set_var(name, share)

    def join(self, name: str) -> np.ndarray[Any, Any]:
        return self.dealer.join([runtime.get_var(name) for runtime in self.runtimes])

    def each(self, work: Callable[[int], T]) -> list[T]:
        """All parties at once, by rank; the first failure is raised after all have ended."""
        waiting = [self._pool.submit(work, rank) for rank in range(PARTIES)]
        for future in waiting:
            future.exception()
        return [future.result() for future in waiting]

    def hold(self, kind: Input) -> str:
        """The name of random numbers of this type: shared secretly, or so that every party knows them."""
        name = repr(kind)
        if name not in self._held:
            if kind.public:
                share = self.dealer.publish(kind.draw())
                self.each(lambda rank: self.runtimes[rank].set_var(name, share))
            else:
                self.put(name, kind.draw())
            self._held.add(name)
        return name

    def cost_of(self, program: Program) -> Cost:
        """Of one run on random numbers; a second run of the same program costs about the same."""
        names = [self.hold(kind) for kind in inputs_of(program.code)]
        outputs = [f"out/{number}" for number in range(len(program.outputs))]
        made = libspu.Executable(name=program.name, input_names=names, output_names=outputs, code=program.code)
        with _standard_output() as log:
            begun = time.process_time()
            try:
                self.each(lambda rank: self.runtimes[rank].run(made))
            except RuntimeError as wrong:  # SPU's words, which speak of shapes
                raise PartyLost(f"A party failed: {' '.join(str(wrong).split())[:300]}") from None
            worked, deadline = time.process_time() - begun, time.monotonic() + PROFILE_S
            while time.monotonic() < deadline:
                log.seek(0)
                if (cost := read_profile(log.read().decode("utf-8", "replace"), worked)) is not None:
                    return cost
                time.sleep(0.005)
        raise ProtocolError("SPU wrote no profile of a run.", hint="Is this another version of SPU?")


@contextmanager
def _standard_output() -> Iterator[IO[bytes]]:
    """What any library of this process writes there meanwhile."""
    sys.stdout.flush()
    before = os.dup(1)
    with TemporaryFile() as log:
        os.dup2(log.fileno(), 1)
        try:
            yield log
        finally:
            os.dup2(before, 1)
            os.close(before)
