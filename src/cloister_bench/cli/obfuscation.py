"""`cloister bench obfuscation`: tables, JSON and plots of what `bench/obfuscation/` measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from cloister_bench.cli.options import SamplingModel
from cloister_bench.cli.suite import Bars, JsonFile, PlotDir, known_names, measure_suite, raise_if_failed
from cloister_bench.obfuscation.plan import FULL, PARTS, QUICK


def bench_obfuscation(
    json_file: JsonFile = None,
    plot_dir: PlotDir = None,
    quick: Annotated[bool, typer.Option("--quick", help="Ten minutes at most: few secrets, few numbers.")] = False,
    sampling_model: SamplingModel = None,
    shared: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="CLOISTER_SHARED", help="Folder with data/clinical.", show_default="shared"),
    ] = None,
    other_model: Annotated[
        str | None, typer.Option(help="Another model that reads all prompts and bets.", show_default="none")
    ] = None,
    parts: Annotated[str, typer.Option(help="What to measure.")] = ",".join(PARTS),
    temperature: Annotated[float, typer.Option(min=0.05, max=10, help="Of the sampling model.")] = FULL.temperature,
    seconds: Annotated[
        float | None, typer.Option(min=1.0, help="What has not begun by then is left out.", show_default="3600")
    ] = None,
) -> None:
    """Measure prompt obfuscation: substitutes found in clinical notes, time to sample, who guesses the real prompt, and
    what decoding λ+1 prompts costs a server that this command starts.

    Secrets are marked by rules. Seconds are this machine's, with whatever else it does.

    Examples:

      cloister bench obfuscation --json obfuscation.json --plot-dir plots

      cloister bench obfuscation --quick --parts latency
    """
    from cloister.local_sampling import LocalModel
    from cloister_bench.obfuscation.decoding import Server
    from cloister_bench.obfuscation.letters import Letters
    from cloister_bench.obfuscation.results import FIGURES, Results, tables
    from cloister_bench.obfuscation.run import Bench
    from cloister_bench.obfuscation.texts import clinical_texts, other_notes

    basis = QUICK if quick else FULL
    plan = replace(basis, temperature=temperature, seconds=seconds or basis.seconds)
    wanted = set(known_names(parts, "part", PARTS))
    texts = clinical_texts(shared, max(plan.secrets, plan.trials // 4))
    most = max(plan.lambda_max, *plan.latency_lambdas)
    model = LocalModel(sampling_model, lambda_max=most)
    other = None if other_model is None else LocalModel(other_model)
    letters = Letters(other_notes(shared, texts) if "distinguisher" in wanted else ())
    results = Results(plan, model.name)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        with TemporaryDirectory(prefix="cloister-obfuscation-") as logs:
            server = partial(Server, sampling_model, Path(logs))
            Bench(results, model, texts, letters, bars, save, other, server).run(wanted)

    measure_suite(results, measure, json_file, plot_dir, tables, FIGURES)
    raise_if_failed(results)
    if results.skipped:
        typer.echo(f"Left out: {'; '.join(results.skipped)}.", err=True)
