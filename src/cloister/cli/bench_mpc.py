"""`cloister bench mpc`: what generation on secret shares costs, as bars, tables, JSON and plots. See `bench/mpc`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cloister.cli.bench_view import Bars, number_table, progress_bars
from cloister.cli.options import numbers
from cloister.errors import ServiceUnavailable, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from cloister.bench.mpc.plan import Part
    from cloister.bench.mpc.quality import QualityRow

PARTS = "lengths,composition,ablation,gathering,hierarchies,sharing,necessity,two_party,quality"
COSTS = ("megabytes", "messages", "seconds", "lan_seconds", "wan_seconds")
HEADS = ("MB", "messages", "s here", "s on a LAN", "s on a WAN")


def bench_mpc(
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help='Write the numbers here, part by part; "-" prints them.'),
    ] = None,
    plot_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the figures here, one PNG for each.")
    ] = None,
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
    from rich.console import Console

    _need_spu()
    from cloister.bench.mpc.figures import draw_figures
    from cloister.bench.mpc.plan import FULL, QUICK
    from cloister.bench.mpc.report import write_report
    from cloister.bench.mpc.results import Results
    from cloister.bench.mpc.run import Bench
    from cloister.bench.report import write_json
    from cloister.models.source import find_model
    from cloister.mpc.provider.calibration import prepare

    basis = QUICK if quick else FULL
    plan = replace(
        basis,
        lengths=_lengths(lengths) if lengths else basis.lengths,
        ways=_ways(methods) if methods else basis.ways,
        repeats=repeats or basis.repeats,
        seconds=seconds or basis.seconds,
    )
    wanted = _parts(parts) if parts else set(plan.parts)
    folder = find_model(model)
    results = Results(plan, folder.name)
    printed = json_file == Path("-")

    def save() -> None:
        if json_file and not printed:
            write_json(results.document(), json_file)

    save()  # a file that cannot be written should not cost half an hour

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

    with progress_bars() as progress:
        shape, _ = prepare(folder)
        Bench(results, shape, Bars(progress), save, quality=quality).run(wanted)
    document = results.document()
    if printed:
        typer.echo(json.dumps(document, indent=2))
    else:
        for table in _tables(document):
            if table.row_count:
                Console().print(table)
    if plot_dir:
        draw_figures(document, plot_dir)
    if report_file:
        write_report(document, report_file)
    if results.failed:
        reasons = "; ".join(f"{one['part']}: {one['reason']}" for one in results.failed)
        raise ServiceUnavailable(f"Not all was measured ({reasons}).", hint="What was measured is kept.")
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


def _ways(text: str) -> tuple[str, ...]:
    from cloister.bench.mpc.ways import WAYS

    return _known(text, "method", tuple(WAYS))


def _parts(text: str) -> set[Part]:
    return cast("set[Part]", set(_known(text, "part", tuple(PARTS.split(",")))))


def _known(text: str, what: str, names: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(each.strip() for each in text.split(","))
    if unknown := set(chosen) - set(names):
        raise SetupError(f"There is no {what} {sorted(unknown)[0]!r}.", hint=f"There are: {', '.join(names)}.")
    return chosen


def _tables(document: dict[str, Any]) -> list[Table]:
    kinds = (
        ("A token's cost", "runs", ("protocol", "seq", "method")),
        ("Step by step (Figure 11)", "ablation", ("step",)),
        ("Gathering (Table 2)", "gathering", ("way",)),
        ("Hierarchies (Table 6)", "hierarchies", ("levels",)),
        ("Layers with one selection (Figure 12)", "shared_layers", ("method", "layers")),
        ("With and without a cache (Table 8)", "necessity", ("seq", "cache")),
    )
    tables = [_cost_table(title, document[key], labels) for title, key, labels in kinds]
    return [*tables, _quality_table(document), _targets_table(document)]


def _cost_table(title: str, rows: list[dict[str, Any]], labels: tuple[str, ...]) -> Table:
    table = number_table(title, (*labels, *HEADS), len(labels))
    for row in rows:
        table.add_row(*(str(row[label]) for label in labels), *(f"{row[cost]:.4g}" for cost in COSTS))
    return table


def _quality_table(document: dict[str, Any]) -> Table:
    table = number_table("Quality in plaintext", ("task", "method", "budget", "score"), 2)
    for row in document["quality"]:
        table.add_row(row["task"], row["method"], f"{row['budget']:g}", f"{row['score']:.4g}")
    return table


def _targets_table(document: dict[str, Any]) -> Table:
    table = number_table("Targets", ("", "at least", "measured", ""))
    for target in document["targets"]:
        if target["measured"] is not None:
            met = "" if target["met"] is None else "[green]met[/]" if target["met"] else "[red]missed[/]"
            least = "-" if target["target"] is None else f"{target['target']:g}"
            table.add_row(target["name"], least, f"{target['measured']:.3g}", met)
    return table
