"""`cloister bench spd`: what vaults cost, as bars, tables, JSON and plots. What is measured is in `bench/spd`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cloister.bench.spd.plan import FULL, PARTS, QUICK, Part
from cloister.cli.bench_view import Bars, number_table, progress_bars
from cloister.cli.options import numbers
from cloister.errors import ServiceUnavailable, SetupError

if TYPE_CHECKING:
    from rich.table import Table


def bench_spd(
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help='Write the numbers here, part by part; "-" prints them.'),
    ] = None,
    plot_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the figures here, one PNG for each.")
    ] = None,
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
    from rich.console import Console

    from cloister.bench.report import write_json
    from cloister.bench.spd.figures import draw_figures
    from cloister.bench.spd.results import Results
    from cloister.bench.spd.run import Bench
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
    wanted = _parts(parts)
    folder = find_model(model)
    larger = find_model(larger_model) if larger_model else None
    results = Results(plan, folder.name, quick)
    printed = json_file == Path("-")

    def save() -> None:
        if json_file and not printed:
            write_json(results.document(), json_file)

    save()  # a file that cannot be written should not cost ten minutes
    with progress_bars() as progress:
        bench = Bench(results, folder, Bars(progress), save, larger=larger, arguments=serve_arg or ())
        uvloop.run(bench.run(wanted))
    document = results.document()
    if printed:
        typer.echo(json.dumps(document, indent=2))
    else:
        for table in (*_runs_tables(document), _breakdown_table(document), _targets_table(document)):
            if table.row_count:
                Console().print(table)
    if plot_dir:
        draw_figures(document, plot_dir)
    if results.failed:
        reasons = "; ".join(f"{one['part']}: {one['reason']}" for one in results.failed)
        raise ServiceUnavailable(f"Not all was measured ({reasons}).", hint="What was measured is kept.")


def _parts(text: str) -> set[Part]:
    chosen = {each.strip() for each in text.split(",")}
    if unknown := chosen - set(PARTS):
        raise SetupError(f"There is no part {sorted(unknown)[0]!r}.", hint=f"There are: {', '.join(PARTS)}.")
    return cast(set[Part], chosen)


def _runs_tables(document: dict[str, Any]) -> list[Table]:
    """One for each model. A load is users × tokens in/tokens out."""
    tables: dict[str, Table] = {}
    columns = ("load", "level", "tokens/s", "of open's", "answer, ms", "first token, ms")
    for run in document["runs"]:
        table = tables.setdefault(run["model"], number_table(run["model"], columns))
        load = f"{run['users']} × {run['input_tokens']}/{run['output_tokens']}"
        ratio = "-" if run["ratio_to_open"] is None else f"{run['ratio_to_open']:.3f}"
        told = (_number(run["tokens_per_s"]), ratio, _number(run["answer_ms"]), _number(run["ttft_ms"]))
        table.add_row(load, run["level"], *told)
    return list(tables.values())


def _breakdown_table(document: dict[str, Any]) -> Table:
    breakdown = document["breakdown"]
    table = number_table("A step of the service at partitioned, ms", ("", *(f"{users} users" for users in breakdown)))
    names = next(iter(breakdown.values()))["phases_ms"] if breakdown else ()
    for name in names:
        table.add_row(name.replace("_", " "), *(f"{each['phases_ms'][name]:.3f}" for each in breakdown.values()))
    if breakdown:
        table.add_row("whole step", *(f"{each['step_ms']:.3f}" for each in breakdown.values()))
    return table


def _targets_table(document: dict[str, Any]) -> Table:
    table = number_table("Targets", ("", "target", "measured", ""))
    for target in document["targets"]:
        sign = "≥" if target["bound"] == "at least" else "≤"
        unknown = target["measured"] is None
        met = "-" if unknown else "[green]met[/]" if target["met"] else "[red]missed[/]"
        table.add_row(target["name"], f"{sign} {target['target']:g}", _number(target["measured"]), met)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
