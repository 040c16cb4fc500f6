"""`cloister bench privacy`: what our best attackers get at each level, each beside a baseline that must succeed."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import typer

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import PRINTED, Bars, Output, known_names, measure_suite, raise_if_failed


class PrivacyOptions(Output):
    attacks: str | None = option(None, "Which attacks, with commas between.", show_default="all")
    model: str | None = option(None, "The model: a Llama.", show_default="SmolLM2-135M-Instruct")
    obfuscation: Path = option(
        Path("docs/bench/obfuscation.json"), "The distinguisher's document, by `bench obfuscation`.", metavar="FILE"
    )
    data: Path = option(Path("data"), "Public prompts: a folder with injection/, chat/ and pii/.", metavar="FOLDER")
    texts: Path | None = option(
        None, "Prompts, as lines of JSON: text, and for traffic topic (0 or 1) and group.", metavar="FILE"
    )
    seed: int = option(1, "What is drawn is drawn from this.")
    quick: bool = option(False, "Few and short: to see that it works.")


@settings_command(PrivacyOptions)
def bench_privacy(options: PrivacyOptions) -> None:
    """Attack this node's levels as a provider, a tenant or an observer would, with the model's own weights.

    Prompts are reconstructed from attention contributions, guessed from answers, timed in the cache, found among
    made-up ones, and their topics in streams. Each attack has a baseline that must succeed.

    Examples:

      cloister bench privacy --texts prompts.jsonl --json privacy.json

      cloister bench privacy --quick --attacks reconstruction
    """
    from dataclasses import replace

    from cloister.errors import CloisterError
    from cloister.models.source import find_model
    from cloister.prompts.tokenizer import Tokenizer
    from cloister_bench.privacy.results import ATTACKS, FIGURES, FULL, QUICK, Results, tables
    from cloister_bench.privacy.rows import Victim

    plan = replace(QUICK if options.quick else FULL, seed=options.seed)
    chosen = known_names(options.attacks, "attack", tuple(ATTACKS)) if options.attacks else tuple(ATTACKS)
    folder = find_model(options.model)
    results = Results(plan, folder.name)

    given = [] if options.texts is None else list(map(json.loads, options.texts.read_text("utf-8").splitlines()))

    @cache
    def load() -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        for name in chosen:
            bars.begin(name, 1)
            folders = (options.model, options.obfuscation, Tokenizer(folder))
            victim = Victim(plan, *folders, load, bars.say, options.data, given)
            try:
                for row in ATTACKS[name](victim):
                    results.rows.append(row)
                    save()
            except (CloisterError, OSError) as wrong:
                results.failed.append({"part": name, "reason": str(wrong)})
            results.seconds = monotonic() - began
            bars.advance("done")
            save()

    document = measure_suite(results, measure, options, tables, FIGURES)
    if options.json_file != PRINTED:
        typer.echo(tables(document)[0].markdown())
    raise_if_failed(results)
