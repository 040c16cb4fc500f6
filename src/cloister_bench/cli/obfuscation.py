"""`cloister bench obfuscation`: tables, JSON and plots of what `bench/obfuscation/` measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite, raise_if_failed
from cloister_bench.obfuscation.results import FIGURES, FULL, PARTS, QUICK, Results, tables


class ObfuscationOptions(Output):
    quick: bool = option(False, "Ten minutes at most: few secrets, few numbers.")
    sampling_model: str | None = option(
        None, "Model of this machine that samples, as for `serve`.", show_default="SmolLM2-135M-Instruct"
    )
    shared: Path | None = option(
        None, "Folder with data/clinical.", metavar="DIR", envvar="CLOISTER_SHARED", show_default="shared"
    )
    other_model: str | None = option(None, "Another model that reads all prompts and bets.", show_default="none")
    parts: str = option(",".join(PARTS), "What to measure.")
    temperature: float = option(FULL.temperature, "Of the sampling model.", ge=0.05, le=10)
    seconds: float | None = option(None, "What has not begun by then is left out.", ge=1, show_default="3600")


@settings_command(ObfuscationOptions)
def bench_obfuscation(options: ObfuscationOptions) -> None:
    """Measure prompt obfuscation: substitutes found in clinical notes, time to sample, who guesses the real prompt, and
    what decoding λ+1 prompts costs a server that this command starts.

    Secrets are marked by rules. Seconds are this machine's, with whatever else it does.

    Examples:

      cloister bench obfuscation --json obfuscation.json --plot-dir plots

      cloister bench obfuscation --quick --parts latency
    """
    from cloister.local_sampling import LocalModel
    from cloister_bench.obfuscation.adversaries import Letters
    from cloister_bench.obfuscation.decoding import Server
    from cloister_bench.obfuscation.run import Bench
    from cloister_bench.obfuscation.texts import clinical_texts, other_notes

    basis = QUICK if options.quick else FULL
    plan = replace(basis, temperature=options.temperature, seconds=options.seconds or basis.seconds)
    wanted = set(known_names(options.parts, "part", PARTS))
    texts = clinical_texts(options.shared, max(plan.secrets, plan.trials // 4))
    most = max(plan.lambda_max, *plan.latency_lambdas)
    model = LocalModel(options.sampling_model, lambda_max=most)
    other = None if options.other_model is None else LocalModel(options.other_model)
    letters = Letters(other_notes(options.shared, texts) if "distinguisher" in wanted else ())
    results = Results(plan, model.name)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        with TemporaryDirectory(prefix="cloister-obfuscation-") as logs:
            server = partial(Server, options.sampling_model, Path(logs))
            Bench(results, model, texts, letters, bars, save, other, server).run(wanted)

    measure_suite(results, measure, options, tables, FIGURES)
    raise_if_failed(results)
    if results.skipped:
        typer.echo(f"Left out: {'; '.join(results.skipped)}.", err=True)
