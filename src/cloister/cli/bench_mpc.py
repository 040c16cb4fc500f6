"""`cloister bench mpc`: what generation on secret shares costs, as bars, tables, JSON and plots. See `bench/mpc`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.bench_suite import Bars, JsonFile, PlotDir, known_names, measure_suite, raise_if_failed
from cloister.cli.options import numbers
from cloister.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloister.bench.mpc.quality import QualityRow


def bench_mpc(
    json_file: JsonFile = None,
    plot_dir: PlotDir = None,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write all tables here, as Markdown.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Within five minutes instead of half an hour: less, and once each.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Model whose shape is measured.", show_default="SmolLM2-135M-Instruct")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens in the sequence.", show_default="256,512,1024,2048")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Ways of keeping the cache, by name.", show_default="all")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Times each program is run; the middle time counts.", show_default="3")
    ] = None,
    parts: Annotated[
        str | None, typer.Option(help="What to measure.", show_default="all; with --quick the dearest are left out")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1.0, help="What has not begun by then is left out.", show_default="1800")
    ] = None,
    quality_data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with data/longctx, for quality.", show_default="generated texts"),
    ] = None,
) -> None:
    """Measure what a token costs on secret shares: bytes, messages and time, for every way of keeping the KV cache.

    Starts three parties (two for Cheetah) as processes of this machine and runs the programs of a generation's step on
    random numbers. Bytes and messages are exact; seconds are this machine's, with whatever else it does. From all three
    follow the times on a LAN (377 MB/s, 0.3 ms) and a WAN (40 MB/s, 40 ms).

    Examples:

      cloister bench mpc --json mpc.json --plot-dir plots

      cloister bench mpc --quick

      cloister bench mpc --lengths 1024 --methods full,mpcache --parts lengths
    """
    _need_spu()
    from cloister.bench.mpc.figures import FIGURES
    from cloister.bench.mpc.plan import FULL, PARTS, QUICK
    from cloister.bench.mpc.results import Results
    from cloister.bench.mpc.run import Bench
    from cloister.bench.mpc.tables import tables, write_report
    from cloister.bench.mpc.variants import VARIANTS
    from cloister.models.source import find_model
    from cloister.mpc.provider.calibration import prepare

    basis = QUICK if quick else FULL
    plan = replace(
        basis,
        lengths=_lengths(lengths) if lengths else basis.lengths,
        ways=known_names(methods, "method", tuple(VARIANTS)) if methods else basis.ways,
        repeats=repeats or basis.repeats,
        seconds=seconds or basis.seconds,
    )
    wanted = set(known_names(parts, "part", PARTS) if parts else plan.parts)
    folder = find_model(model)
    results = Results(plan, folder.name)

    def quality(progress: Callable[[str], None]) -> list[QualityRow]:
        from cloister.bench.mpc.quality import run_quality

        return run_quality(
            folder.path,
            quality_data,
            samples=plan.quality_samples,
            budgets=plan.quality_budgets,
            methods=plan.quality_methods,
            progress=progress,
        )

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        shape, _ = prepare(folder)
        Bench(results, shape, bars, save, quality=quality).run(wanted)

    document = measure_suite(results, measure, json_file, plot_dir, tables, FIGURES)
    if report_file:
        write_report(document, report_file)
    raise_if_failed(results)
    if results.left_out:
        typer.echo(f"Left out for lack of time: {', '.join(results.left_out)}. Give it more with --seconds.", err=True)


def _need_spu() -> None:
    from importlib.util import find_spec

    if find_spec("spu") is None or find_spec("jax") is None:
        raise SetupError("Generation on shares is not installed.", hint="pip install 'cloister[mpc]' (Python 3.11).")


def _lengths(text: str) -> tuple[int, ...]:
    chosen = tuple(numbers(text))
    if any(length % 16 or length < 64 for length in chosen):
        raise SetupError("Sequences are measured at multiples of 16 tokens, from 64 on.", hint="Try 256,1024.")
    return chosen
