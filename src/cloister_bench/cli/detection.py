"""`cloister bench detection`: accuracy and latency of the detection of private blocks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from cloister.errors import SetupError
from cloister_bench.cli.suite import Bars, JsonFile, PlotDir, measure_suite


def bench_detection(
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that has data/pii.", show_default="$CLOISTER_SHARED")
    ] = None,
    json_file: JsonFile = None,
    plot_dir: PlotDir = None,
    quarter: Annotated[
        int, typer.Option(min=0, max=3, help="Which quarter of each set; only 3 was never seen by the tagger.")
    ] = 3,
    most: Annotated[int | None, typer.Option(min=1, help="Texts of each set at most.", show_default="all")] = None,
) -> None:
    """Measure how well the detector separates private blocks from public ones, by tier, set, language and type; and its
    speed.

    Nothing is served: the texts are read where they lie and classified here. SafeKV's Figures 7 and 9.

    Example:

      cloister bench detection --data ../shared --json detection.json --plot-dir plots
    """
    from cloister.detection.pipeline import shipped_pipeline
    from cloister.detection.tagger import shipped_tagger
    from cloister_bench.detection.data import read_sets
    from cloister_bench.detection.figures import FIGURES
    from cloister_bench.detection.measure import judge, latencies
    from cloister_bench.detection.results import Plan, Results, tables

    folder = data if data is not None else Path(os.environ.get("CLOISTER_SHARED", ""))
    if data is None and "CLOISTER_SHARED" not in os.environ:
        raise SetupError(
            "The texts to measure on are not known.", hint="Name the folder that has data/pii: --data DIR."
        )
    pipeline, tagger = shipped_pipeline(), shipped_tagger()
    calibration = tagger.calibration
    plan = Plan(quarter, public_below=calibration.public, private_from=calibration.private)
    results = Results(plan, "rules and tagger")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        taken: dict[str, int] = {}
        samples = [sample for sample in read_sets(folder) if sample.quarter == quarter]
        bars.begin("texts", len(samples))
        for sample in samples:
            bars.advance(sample.dataset)
            taken[sample.dataset] = taken.get(sample.dataset, 0) + 1
            if most is None or taken[sample.dataset] <= most:
                results.texts.append(judge(pipeline, sample))
                results.blocks += results.texts[-1]
        long = "\n".join(sample.text for sample in samples)
        size = 2304
        pieces = [long[place : place + size] for place in range(0, min(len(long), 200 * size), size)]
        results.latency_us = latencies(pipeline.rules, tagger, pieces)
        results.seconds = monotonic() - began
        save()

    measure_suite(results, measure, json_file, plot_dir, tables, FIGURES)
