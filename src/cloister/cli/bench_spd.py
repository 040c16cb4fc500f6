"""`cloister bench spd`: what vaults cost, as bars, tables, JSON and plots. What is measured is in `bench/spd`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.bench.spd.plan import FULL, PARTS, QUICK
from cloister.cli.bench_suite import Bars, JsonFile, PlotDir, known_names, measure_suite, raise_if_failed
from cloister.cli.options import numbers

if TYPE_CHECKING:
    from collections.abc import Callable


def bench_spd(
    json_file: JsonFile = None,
    plot_dir: PlotDir = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two minutes instead of nine: less, and once each.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Model to measure, as for `serve`.", show_default="SmolLM2-135M-Instruct")
    ] = None,
    larger_model: Annotated[
        str | None, typer.Option(help="The second model.", show_default="random weights, 362M parameters")
    ] = None,
    users: Annotated[
        str | None, typer.Option(help="How many users at once.", show_default=",".join(map(str, FULL.users)))
    ] = None,
    input_tokens: Annotated[int, typer.Option(min=1, help="Tokens in each prompt.")] = FULL.input_tokens,
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens in each answer.")] = FULL.output_tokens,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Times each side is measured, in turn.", show_default=str(FULL.rounds)),
    ] = None,
    requests_per_user: Annotated[
        int | None, typer.Option(min=1, help="Requests each user sends in a round.", show_default=str(FULL.requests))
    ] = None,
    parts: Annotated[str, typer.Option(help="What to measure.")] = ",".join(PARTS),
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="About how long it may take; rounds that do not fit are left out.",
            show_default=f"{FULL.seconds:g}",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the prompts.")] = FULL.seed,
    serve_arg: Annotated[
        list[str] | None, typer.Option(metavar="ARG", help="One more argument for `cloister serve`.")
    ] = None,
) -> None:
    """Measure what vaults cost on this machine: `open`, `partitioned` and `isolated` side by side.

    Starts its own servers and draws Petridish's Figures 4–7: answer times over users, model sizes and lengths, and
    where a step's time goes; also first tokens, how soon a new user's vault is ready, and, as root, memory. All sides
    are measured in turn, round by round. Anything else that runs on this machine is in the numbers.

    Examples:

      cloister bench spd --json spd.json --plot-dir plots

      cloister bench spd --quick

      cloister bench spd --users 1,8 --parts users,breakdown --rounds 5
    """
    import uvloop

    from cloister.bench.spd.figures import FIGURES
    from cloister.bench.spd.results import Results
    from cloister.bench.spd.run import Bench
    from cloister.bench.spd.tables import tables
    from cloister.models.source import find_model

    basis = QUICK if quick else FULL
    plan = replace(
        basis,
        users=tuple(numbers(users)) if users else basis.users,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        rounds=rounds or basis.rounds,
        requests=requests_per_user or basis.requests,
        seconds=seconds or basis.seconds,
        seed=seed,
    )
    wanted = set(known_names(parts, "part", PARTS))
    folder = find_model(model)
    larger = find_model(larger_model) if larger_model else None
    results = Results(plan, folder.name, quick)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        bench = Bench(results, folder, bars, save, larger=larger, arguments=serve_arg or ())
        uvloop.run(bench.run(wanted))

    measure_suite(results, measure, json_file, plot_dir, tables, FIGURES)
    raise_if_failed(results)
