"""Runs every lean function on shares, three parties as threads of this process, and writes what came out and its cost.

SPU reports messages in its log alone, so this is a process: `python -m tests.cloister_mpc.functions.on_shares FILE`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_RUN = "run of "
_SENT = re.compile(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")


class Case(NamedTuple):
    function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]


class Outcome(NamedTuple):
    values: np.ndarray
    messages: int  # of all parties together: who sends a message more or less is drawn at random
    bytes: int


def cases() -> dict[str, Case]:
    from cloister_mpc.functions.bundle import LEAN
    from cloister_mpc.functions.softmax import exponential

    rng = np.random.default_rng(0)
    ordered = np.concatenate([np.linspace(-12.9, 12.9, 56), [-3000, -60, -8.49, 0, 2, 8.51, 60, 3000]])[:, None] / 8
    scores = np.concatenate([np.linspace(-2, 13, 61), np.linspace(-160, -2, 80)])
    denominators = np.exp2(np.linspace(-9, 24, 34))
    ratios = rng.uniform(-2, 2, (34, 8))
    sums = np.concatenate([ratios, np.ones((34, 1))], axis=1) * denominators[:, None]
    one_row = np.concatenate([sums, np.zeros((1, 9))])[:, None]  # the last one is 0 / 0
    every = {
        "ordered_silu": Case(lambda x: LEAN.ordered_silu(x, 56), (ordered,)),
        "rms_scale": Case(LEAN.rms_scale, (np.exp2(np.linspace(-12, 11, 24)),)),
        "divide": Case(LEAN.softmax.divide, (one_row,)),
        "weigh": Case(LEAN.softmax.weigh, (scores[None], np.array([[1.5]]))),
        "wide": Case(lambda x: exponential(x), (scores,)),
    }
    return {
        name: Case(case.function, tuple(given.astype(np.float32) for given in case.inputs))
        for name, case in every.items()
    }


def outcomes(folder: Path) -> dict[str, Outcome]:
    """Of all cases, from one child process."""
    file = folder / "values.npz"
    child = subprocess.run(
        [sys.executable, "-m", "tests.cloister_mpc.functions.on_shares", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout[-2000:]
    found = {}
    with np.load(file) as values:
        for log in child.stdout.split(_RUN)[1:]:
            name = log.split("\n", 1)[0]
            sent = [(int(size), int(count)) for size, count in _SENT.findall(log)]
            assert len(sent) == 3, "each party reports its run once"
            found[name] = Outcome(values[name], sum(count for _, count in sent), sum(size for size, _ in sent))
    return found


def _run_all(file: str) -> None:
    from spu import libspu
    from spu.utils.simulation import PropagatingThread, Simulator, sim_jax

    class Profiled(Simulator):  # the library's own silences all parties but the first
        def __call__(self, executable: libspu.Executable, *inputs: Any) -> list[np.ndarray]:
            described = libspu.link.Desc()
            for rank in range(3):
                described.add_party(f"party{rank}", f"thread:{rank}")
            shares = [self.io.make_shares(np.array(given), libspu.Visibility.VIS_SECRET) for given in inputs]

            def party(rank: int) -> list[libspu.Share]:
                from spu import Runtime

                runtime = Runtime(libspu.link.create_mem(described, rank), self.rt_config)
                for name, share in zip(executable.input_names, shares, strict=True):
                    runtime.set_var(name, share[rank])
                runtime.run(executable)
                return [runtime.get_var(name) for name in executable.output_names]

            threads = [PropagatingThread(target=party, args=(rank,)) for rank in range(3)]
            for thread in threads:
                thread.start()
            return [self.io.reconstruct(list(parts)) for parts in zip(*[t.join() for t in threads], strict=True)]

    config = libspu.RuntimeConfig(libspu.ProtocolKind.ABY3, libspu.FieldType.FM64, 18)
    config.enable_pphlo_profile = True
    simulator = Profiled(3, config)
    results = {}
    for name, case in cases().items():
        print(f"\n{_RUN}{name}", flush=True)
        results[name] = np.asarray(sim_jax(simulator, case.function)(*case.inputs))
    np.savez(file, **results)


if __name__ == "__main__":
    _run_all(sys.argv[1])
