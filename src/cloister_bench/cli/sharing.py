"""`cloister bench sharing`: what sharing computed prompts saves on natural traffic, policy by policy."""

import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite, numbers

if TYPE_CHECKING:
    from cloister_bench.sharing.results import Results
    from cloister_bench.sharing.workloads import Workload
    from cloister_bench.sharing.world import Reader


class SharingOptions(Output):
    policies: str | None = option(None, "Which policies, with commas between.", show_default="all")
    workloads: str | None = option(None, "Which workloads, with commas between.", show_default="all")
    tenants: str = option("8,24,200", "Numbers of tenants, with commas between.")
    rounds: int = option(1, "How often each workload is drawn.", ge=1)
    requests: int = option(800, "Chats.", ge=1)
    rate: float = option(16.0, "Requests a second, in the mean.", gt=0)
    kv_cache_mib: int = option(1024, "The server's KV cache.", ge=1)
    data: Path | None = option(
        None, "Folder with chat/, injection/, longctx/ and pii/.", metavar="DIR", show_default="a small sample"
    )
    model: str | None = option(None, "Its tokens are counted.", show_default="the default model")
    seed: int = option(1, "What texts, tenants and times are drawn from.")
    quick: bool = option(False, "40 requests of each: to see that it works.")


@settings_command(SharingOptions)
def bench_sharing(options: SharingOptions) -> None:
    """Measure what sharing computed prompts saves on natural traffic, policy by policy.

    Tenants are apps, each with one of ten system prompts (Zipf). They send chats of two questions (first-chats: one of
    each tenant; chat: minutes of them). Texts are drawn by --seed and by nothing else. Tokens, detector, votes and
    cache are the real ones; no model runs. A policy's gain is (found - partition) / (global - partition). What others
    learn: `cloister bench sharing-attack`.

    Example:

      cloister bench sharing --data ../shared/data --rounds 3 --json sharing.json --plot-dir plots
    """
    from cloister.models.source import find_model
    from cloister.prompts.tokenizer import Tokenizer
    from cloister_bench.sharing.results import FIGURES, Plan, Results, tables
    from cloister_bench.sharing.workloads import VARIANTS, WORKLOADS, Scale, read_texts
    from cloister_bench.sharing.world import Reader, blocks_in

    folder = find_model(options.model)
    plan = Plan(
        known_names(options.policies or ",".join(VARIANTS), "policy", tuple(VARIANTS)),
        known_names(options.workloads or ",".join(WORKLOADS), "workload", tuple(WORKLOADS)),
        tuple(numbers(options.tenants)),
        options.rounds,
        options.seed,
        blocks_in(options.kv_cache_mib, folder.config),
        "the built-in sample" if options.data is None else "the data folder",
        Scale(min(options.requests, 40) if options.quick else options.requests, options.rate),
    )
    results, texts, reader = Results(plan, folder.name), read_texts(options.data), Reader(Tokenizer(folder))

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        for name, tenants in [(name, tenants) for name in plan.workloads for tenants in plan.tenants]:
            for turn in range(plan.rounds):
                draw = random.Random(f"{plan.seed} {name} {turn}")
                workload = WORKLOADS[name](texts, plan.scale, draw, tenants)
                _replay(results, workload, reader, bars)
                results.seconds = monotonic() - began
                save()

    measure_suite(results, measure, options, tables, FIGURES)


def _replay(results: "Results", workload: "Workload", reader: "Reader", bars: Bars) -> None:
    from cloister_bench.sharing.workloads import EXPLAINED, VARIANTS, prompts_of, replay, templates_of

    where, policies = (workload.name, workload.tenants), results.plan.policies
    variants = {name: VARIANTS[name] for name in policies} | (EXPLAINED if "counted" in policies else {})
    bars.begin(f"{workload.name}, {workload.tenants} tenants", len(workload.turns) + len(variants))
    prompts = prompts_of(workload, reader, lambda: bars.advance("reading"))
    results.tokens.setdefault(where, []).append(sum(len(one.tokens) for one in prompts))
    templates = templates_of(workload, reader)
    for name, variant in variants.items():
        found = replay(prompts, reader, templates, variant, results.plan.blocks)
        results.found.setdefault((where, name), []).append(sum(found))
        bars.advance(name)
