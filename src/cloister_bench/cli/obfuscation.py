"""`cloister bench obfuscation`: tables, JSON and plots of what `bench/obfuscation/` measures."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from cloister.cli.options import settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite, raise_if_failed
from cloister_bench.obfuscation.results import FULL, METHODS, PARTS, QUICK, Plan, Results, tables

if TYPE_CHECKING:
    from cloister_bench.obfuscation.run import Material


class ObfuscationOptions(Output):
    quick: bool = option(False, "Ten minutes at most: few secrets, few numbers.")
    sampling_model: str | None = option(
        None, "Model of this machine that samples, as for `serve`.", show_default="SmolLM2-135M-Instruct"
    )
    shared: Path | None = option(
        None, "Folder with data/clinical and data/pii.", metavar="DIR", envvar="CLOISTER_SHARED", show_default="shared"
    )
    other_model: str | None = option(None, "A second model, which reads all prompts and bets.", show_default="none")
    lists: Path | None = option(
        None,
        "The adversary's words.txt, name.txt, place.txt, medication.txt: a value and its count a line.",
        metavar="DIR",
        show_default="words of the data",
    )
    parts: str = option(",".join(PARTS), "What to measure.")
    methods: str = option(",".join(METHODS), "Whose substitutes.")
    secrets: int | None = option(None, "Secrets of each category.", ge=1, show_default="40 or 15")
    export: Path | None = option(None, "Write blind cases of the first method for a reader here.", metavar="FILE")
    export_cases: int = option(60, "How many.", ge=1)
    key: Path | None = option(None, "Which prompts of these cases are real.", metavar="FILE")
    answers: Path | None = option(
        None, "A reader's answers to cases of the first method, scored by --key.", metavar="FILE"
    )
    seconds: float | None = option(None, "What has not begun by then is left out.", ge=1, show_default="3600")


@settings_command(ObfuscationOptions)
def bench_obfuscation(options: ObfuscationOptions) -> None:
    """Measure prompt obfuscation: who finds the real prompt among λ others, by category, method and adversary; what one
    secret sent again gives away; ten examples; curves against λ, ε and the sampling model; what decoding λ+1 prompts
    costs a server that this command starts.

    Secrets are those of a fixed rule. Seconds are this machine's, with whatever else it does.

    Examples:

      cloister bench obfuscation --other-model gemma-3-270m --json obfuscation.json

      cloister bench obfuscation --methods exchangeable --parts distinguisher --export cases.json --key key.json

      cloister bench obfuscation --methods exchangeable --answers answers.json --key key.json
    """
    from cloister_bench.obfuscation.curves import FIGURES
    from cloister_bench.obfuscation.decoding import Server
    from cloister_bench.obfuscation.reader import export_cases, score_answers
    from cloister_bench.obfuscation.run import Bench
    from cloister_bench.obfuscation.sizes import FIGURES as LISTS

    methods = known_names(options.methods, "method", METHODS)
    basis = QUICK if options.quick else FULL
    trials = {method: options.secrets or basis.trials[method] for method in methods}
    repeated = tuple(method for method in basis.repeated if method in methods)
    plan = replace(basis, trials=trials, repeated=repeated, seconds=options.seconds or basis.seconds)
    if (options.export or options.answers) and options.key is None:
        raise SetupError("Cases for a reader have their key in another file.", hint="Say which with --key FILE.")
    wanted = set(known_names(options.parts, "part", PARTS))
    results = Results(plan, options.sampling_model or "SmolLM2-135M-Instruct", second_model=options.other_model or "")
    if options.answers and options.key:
        wanted = set()
        results.reader = [{"method": methods[0], **row} for row in score_answers(options.answers, options.key)]
    material = _material(options, plan) if wanted else None

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        if material is None:
            return
        with TemporaryDirectory(prefix="cloister-obfuscation-") as logs:
            server = partial(Server, options.sampling_model, Path(logs))
            bench = Bench(results, material, bars, save, server)
            bench.run(wanted)
            if options.export and options.key:
                found = [trial for method, trial in bench.trials if method == methods[0]]
                count = export_cases(found, options.export_cases, options.export, options.key)
                typer.echo(f"{count} cases are in {options.export}, their key in {options.key}.", err=True)

    measure_suite(results, measure, options, tables, {**FIGURES, **LISTS})
    raise_if_failed(results)
    if results.skipped:
        typer.echo(f"Left out: {'; '.join(results.skipped)}.", err=True)


def _material(options: ObfuscationOptions, plan: Plan) -> "Material":
    from cloister.local_sampling import LocalModel
    from cloister.obfuscation.language_model import TokenShapes
    from cloister_bench.obfuscation.adversaries import Adversaries, Letters, reader_of
    from cloister_bench.obfuscation.curves import Sampling
    from cloister_bench.obfuscation.methods import Remembered, new_methods
    from cloister_bench.obfuscation.run import Material
    from cloister_bench.obfuscation.texts import common_words, one_secret, other_notes, several_secrets
    from cloister_bench.obfuscation.word_lists import WordLists

    most, words = max(plan.trials.values()), common_words(options.shared)
    samplers = []
    for name in (options.sampling_model, options.other_model)[: 1 if options.other_model is None else 2]:
        model = LocalModel(name, lambda_max=512)
        held, shapes = Remembered(model.continuations), TokenShapes(model.tokenizer, model.continuations.vocabulary)
        samplers.append(Sampling(model.name, held, model.tokenizer, shapes, reader_of(held, model.tokenizer)))
    first, *others = samplers
    second = others[0].read if others else None
    adversaries = Adversaries(first.read, Letters(other_notes(options.shared)), WordLists(options.lists, words), second)
    return Material(
        new_methods(first.model, first.tokenizer, words, plan.fakes),
        one_secret(options.shared, most),
        several_secrets(options.shared, most),
        adversaries,
        samplers,
    )
