"""`cloister bench sharing`: what sharing computed prompts saves on natural traffic, policy by policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, measure_suite, numbers

if TYPE_CHECKING:
    from cloister_bench.sharing.results import Results
    from cloister_bench.sharing.workloads import Request
    from cloister_bench.sharing.world import Reader


class SharingOptions(Output):
    tenants: str = option("8,24,200", "Numbers of tenants, with commas between.")
    rounds: int = option(1, "How often each workload is drawn.", ge=1)
    data: Path | None = option(
        None, "Folder with chat/, injection/, longctx/ and pii/.", metavar="DIR", show_default="a small sample"
    )
    model: str | None = option(None, "Its tokens are counted.", show_default="the default model")
    seed: int = option(1, "What texts, tenants and times are drawn from.")
    quick: bool = option(False, "40 chats instead of 800: to see that it works.")


@settings_command(SharingOptions)
def bench_sharing(options: SharingOptions) -> None:
    """Measure what sharing computed prompts saves on natural traffic, policy by policy.

    Tenants are apps, each with one of ten system prompts (Zipf). They send chats of two questions, 16 requests a second
    (first-chats: one of each tenant; chat: minutes of them). Texts are drawn by --seed and by nothing else. Tokens,
    detector, votes and cache are the real ones; no model runs. A policy's gain is
    (found - partition) / (global - partition). What others learn: `cloister bench sharing-attack`.

    Example:

      cloister bench sharing --data ../shared/data --rounds 3 --json sharing.json --plot-dir plots
    """
    from cloister.models.source import find_model
    from cloister.prompts.tokenizer import Tokenizer
    from cloister_bench.sharing.results import FIGURES, Plan, Results, tables
    from cloister_bench.sharing.workloads import CHATS, WORKLOADS, read_texts, requests
    from cloister_bench.sharing.world import Reader

    folder = find_model(options.model)
    plan = Plan(
        tuple(numbers(options.tenants)),
        options.rounds,
        options.seed,
        "the built-in sample" if options.data is None else "the data folder",
        40 if options.quick else CHATS,
    )
    results, texts, reader = Results(plan, folder.name), read_texts(options.data), Reader(Tokenizer(folder))

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        for name, tenants, turn in product(WORKLOADS, plan.tenants, range(plan.rounds)):
            draw = random.Random(f"{plan.seed} {name} {turn}")
            _replay(results, (name, tenants), requests(texts, name, draw, tenants, plan.chats), reader, bars)
            results.seconds = monotonic() - began
            save()

    measure_suite(results, measure, options, tables, FIGURES)


def _replay(results: Results, where: tuple[str, int], asked: list[Request], reader: Reader, bars: Bars) -> None:
    from cloister_bench.sharing.workloads import VARIANTS, prompts_of, replay, templates_of

    bars.begin(f"{where[0]}, {where[1]} tenants", len(asked) + len(VARIANTS))
    prompts = prompts_of(asked, reader, lambda: bars.advance("reading"))
    results.tokens[where] += sum(len(one.tokens) for one in prompts)
    templates = templates_of(asked, reader)
    for name, variant in VARIANTS.items():
        results.found[where, name] += sum(replay(prompts, reader, templates, variant))
        bars.advance(name)
