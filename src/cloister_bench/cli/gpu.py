"""`cloister bench gpu` and `gpu-all`: times and trials on this machine's GPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from cloister.cli.options import settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite, raise_if_failed
from cloister_bench.gpu.plan import FULL, PARTS, QUICK, Case


class GpuOptions(Output):
    quick: bool = option(False, "Four minutes at most: 1 and 8 users.")
    minutes: float | None = option(
        None,
        "Begin nothing later; the command lists what was not measured.",
        ge=0.1,
        show_default=f"{FULL.minutes:g}",
    )
    parts: str = option(",".join(PARTS), "What to measure.")


@settings_command(GpuOptions)
def bench_gpu(options: GpuOptions) -> None:
    """Measure what isolation costs on this machine's GPU: decode steps and whole requests, beside floor and peers.

    Random weights in the shape of Llama-3-8B. `open`, `partitioned` with eight attention processes and with one,
    `obfuscated`, and transformers' generate; the floor is what reading weights, keys and values takes at the bandwidth
    of a copy. Every number is saved when it is there. Needs a Hopper GPU or a later one; see docs/gpu.md.

    Examples:

      cloister bench gpu --json gpu.json --plot-dir plots

      cloister bench gpu --json gpu.json --minutes 7 --parts floor,steps
    """
    from cloister_bench.gpu.results import FIGURES, Results, tables

    begun, basis = monotonic(), QUICK if options.quick else FULL
    parts = known_names(options.parts, "part", PARTS)
    plan = replace(basis, parts=parts, minutes=options.minutes or basis.minutes)
    _need_gpu()
    from cloister_bench.gpu.measurer import Measurer, measure_generate
    from cloister_bench.gpu.mps import mps
    from cloister_bench.gpu.run import Bench, Session

    results = Results(plan, "Llama-3-8B's shape")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        with mps() as partitions:

            def start(case: Case) -> Session:
                if case.part == "transformers":
                    return Session(lambda: measure_generate)
                return Session(lambda: Measurer(partitions=partitions).measure)

            Bench(results, start, bars, save, begun=begun).run()

    measure_suite(results, measure, options, tables, FIGURES)
    if results.left_out:
        typer.echo(f"Not measured for lack of time: {'; '.join(results.left_out)}. Give --minutes more.", err=True)
    raise_if_failed(results)


def bench_gpu_all(
    json_file: Annotated[Path, typer.Option("--json", metavar="FILE", help="Write all results there.")],
    like: Annotated[Path, typer.Option(metavar="FOLDER", help="A configuration and a tokenizer.")],
    gguf: Annotated[Path | None, typer.Option(metavar="FILE", help="Weights of a real model.")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Begin nothing later.")] = 12.0,
    skip: Annotated[str, typer.Option(help="Of check, partition, serve, weights.")] = "",
) -> None:
    """Try on this machine's GPU whether kernels, link, node and weights are right; `bench gpu` measures times.

    The node has random weights of the shape of --like, or those of --gguf. The exit status is 0 if all is right.

    \b
      check      kernels against float64, and bit for bit in any batch, chunk and split
      partition  `open` and `partitioned` have the same bits, with attention processes under MPS
      serve      `cloister serve`, asked by the `openai` client at every level; killed under load
      weights    whether a sealed vault can write the weights that all processes read

    Example:

      cloister bench gpu-all --json all.json --like FOLDER --minutes 8
    """
    from cloister_bench.gpu.trials.run import run_all

    raise typer.Exit(0 if run_all(json_file, like, gguf, minutes, skip) else 1)


def _need_gpu() -> None:
    """Asks in another process: this one forks those that compute, and so must not open the GPU."""
    from cloister.compute.gpu.find import fetch, refusal

    if why := refusal():
        raise SetupError(why, hint="Run this on a machine with a Hopper GPU and `cloister[gpu]`.")
    fetch()
