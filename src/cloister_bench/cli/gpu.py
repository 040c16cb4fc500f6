"""`cloister bench gpu` and `gpu-all`: tables, JSON and plots of what `cloister_bench.gpu` measures."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from cloister.cli.options import settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister_bench.cli.suite import (
    Bars,
    Output,
    known_names,
    measure_suite,
    raise_if_failed,
    save_document,
    show_document,
)
from cloister_bench.gpu.plan import FULL, PARTS, QUICK, Case
from cloister_bench.gpu.shapes import SHAPES


class GpuOptions(Output):
    quick: bool = option(False, "Four minutes at most: one shape, 1 and 8 users.")
    minutes: float | None = option(
        None,
        "Begin nothing later; the command lists what was not measured.",
        ge=0.1,
        show_default=f"{FULL.minutes:g}",
    )
    shapes: str | None = option(None, "Shapes of models, in this order.", show_default=",".join(SHAPES))
    parts: str = option(",".join(PARTS), "What to measure.")
    drawn: Path | None = option(
        None, "Measure nothing: judge, show and draw what this JSON holds.", name="from", metavar="FILE"
    )


@settings_command(GpuOptions)
def bench_gpu(options: GpuOptions) -> None:
    """Measure what isolation costs on this machine's GPU: decode steps and whole requests, beside floor and peers.

    Weights are random, of real models' shapes. `open`, `isolated` and `partitioned` at each isolation setting (one
    attention process, eight, one for each user), and transformers' generate; the floor is what reading weights, keys
    and values takes at the bandwidth of a copy. What the targets need is measured first, and every number is saved
    when it is there. Needs a Hopper GPU or a later one; see docs/gpu.md.

    Examples:

      cloister bench gpu --json gpu.json --plot-dir plots

      cloister bench gpu --json gpu.json --minutes 7

      cloister bench gpu --shapes Llama-3-8B --parts floor,steps

      cloister bench gpu --from gpu.json --plot-dir plots
    """
    from cloister_bench.gpu.results import FIGURES, Results, judged, tables
    from cloister_bench.suite.documents import draw_figures

    if options.drawn:
        document = judged(_read(options.drawn))
        show_document(document, options.json_file, tables)
        save_document(document, options.json_file)
        if options.plot_dir:
            draw_figures(document, options.plot_dir, FIGURES)
        return
    begun, basis = monotonic(), QUICK if options.quick else FULL
    plan = replace(
        basis,
        shapes=known_names(options.shapes, "shape", tuple(SHAPES)) if options.shapes else basis.shapes,
        parts=known_names(options.parts, "part", PARTS),
        minutes=options.minutes or basis.minutes,
    )
    _need_gpu()
    from cloister_bench.gpu.measurer import measurer
    from cloister_bench.gpu.mps import mps
    from cloister_bench.gpu.run import Bench, Session

    results = Results(plan, "GPU")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        with mps() as partitions:

            def start(case: Case) -> Session:
                return Session(measurer(case, plan, partitions=partitions))

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
    skip: Annotated[str, typer.Option(help="Of check, partition, serve, weights, bench.")] = "",
) -> None:
    """Try on this machine's GPU whether kernels, link, node and weights are right; then measure as `bench gpu`.

    The node has random weights of the shape of --like, or those of --gguf. The exit status is 0 if all is right.

    \b
      check      kernels against float64, and bit for bit in any batch, chunk and split
      partition  `open` and `partitioned` have the same bits, with attention processes under MPS
      serve      `cloister serve`, asked by the `openai` client at every level; killed under load
      weights    whether a sealed vault can write the weights that all processes read
      bench      `cloister bench gpu` for the rest of the time; its numbers are not judged here

    Example:

      cloister bench gpu-all --json all.json --like FOLDER --minutes 8
    """
    from cloister_bench.gpu.trials.run import run_all

    raise typer.Exit(0 if run_all(json_file, like, gguf, minutes, skip) else 1)


def _need_gpu() -> None:
    """Asks in another process: this one forks those that compute, and so must not open the GPU."""
    from cloister.compute.gpu.find import fetch, refusal

    if why := refusal():
        raise SetupError(why, hint="Run this on a machine with a Hopper GPU and `cloister[gpu]`; --from draws a JSON.")
    fetch()


def _read(path: Path) -> dict[str, Any]:
    from cloister.files import needed
    from cloister_bench.gpu.results import ROWS

    hint = "Give a file that `cloister bench gpu --json` wrote."
    with needed(f"{path} cannot be read", hint):
        text = path.read_text(encoding="utf-8")
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    parts = [part.replace(" ", "_") for part in (*ROWS, "targets")]
    if not isinstance(document, dict) or not all(isinstance(document.get(part), list) for part in parts):
        raise SetupError(f"{path} holds no measurement of a GPU.", hint=hint)
    return document
