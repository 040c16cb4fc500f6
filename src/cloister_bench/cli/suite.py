"""`cloister bench spd` and `cloister bench mpc`: bars, tables, JSON and plots of what `bench/` measures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cloister.errors import ServiceUnavailable, SetupError
from cloister_bench.cli.options import numbers
from cloister_bench.spd.plan import FULL, PARTS, QUICK

if TYPE_CHECKING:
    from rich.progress import Progress

    from cloister_bench.suite.documents import Document, Drawing, Results, Table

    Tables = Callable[[Document], Sequence[Table]]

PRINTED = Path("-")
Known = TypeVar("Known", bound=str)
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help='Write the numbers here, part by part; "-" prints them.')
]
PlotDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Draw the figures here, one PNG for each.")]


class Bars:
    """A bar for each part, drawn once a second: drawing must not take the cores from what is measured."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._part = ""

    def begin(self, part: str, total: int) -> None:
        self._part = part
        self._task = self._progress.add_task(part, total=total)

    def advance(self, what: str) -> None:
        self._progress.update(self._task, advance=1, description=f"{self._part}: {what}")

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=f"{self._part}: {what}")


def progress_bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=1)


def known_names(text: str, what: str, names: Sequence[Known]) -> tuple[Known, ...]:
    """The names that a comma-separated list chooses; SetupError where one does not exist."""
    chosen = tuple(each.strip() for each in text.split(","))
    if unknown := set(chosen) - set(names):
        raise SetupError(f"There is no {what} {sorted(unknown)[0]!r}.", hint=f"There are: {', '.join(names)}.")
    return tuple(name for each in chosen for name in names if name == each)


def measure_suite(
    results: Results,
    measure: Callable[[Bars, Callable[[], None]], None],
    json_file: Path | None,
    plot_dir: Path | None,
    tables: Tables,
    figures: Mapping[str, Drawing],
) -> Document:
    """Measures, saving part by part; then shows tables or JSON and draws. Returns the document, complete or not."""
    from cloister_bench.suite.documents import draw_figures

    def save() -> None:
        save_document(results.document(), json_file)

    save()  # a file that cannot be written should not cost a whole measurement
    with progress_bars() as progress:
        measure(Bars(progress), save)
    document = results.document()
    show_document(document, json_file, tables)
    if plot_dir:
        draw_figures(document, plot_dir, figures)
    return document


def save_document(document: Document, json_file: Path | None) -> None:
    from cloister_bench.suite.documents import write_json

    if json_file and json_file != PRINTED:
        write_json(document, json_file)


def show_document(document: Document, json_file: Path | None, tables: Tables) -> None:
    if json_file == PRINTED:
        typer.echo(json.dumps(document, indent=2))
    else:
        show_tables(tables(document))


def raise_if_failed(results: Results) -> None:
    if results.failed:
        reasons = "; ".join(f"{one['part']}: {one['reason']}" for one in results.failed)
        raise ServiceUnavailable(f"Not all was measured ({reasons}).", hint="What was measured is kept.")


def show_tables(tables: Sequence[Table]) -> None:
    from rich import table as rich_table
    from rich.console import Console

    colours = {"met": "[green]met[/]", "missed": "[red]missed[/]"}
    for table in tables:
        shown = rich_table.Table(title=table.title, caption=table.caption)
        for place, head in enumerate(table.heads):
            is_number = place >= table.labels
            shown.add_column(head, justify="right" if is_number else "left", no_wrap=is_number)
        for row in table.rows:
            shown.add_row(*(colours.get(cell, cell) for cell in row))
        if table.rows:
            Console().print(shown)


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

    from cloister.models.source import find_model
    from cloister_bench.spd.figures import FIGURES
    from cloister_bench.spd.results import Results, tables
    from cloister_bench.spd.run import Bench

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


def bench_mpc(
    json_file: JsonFile = None,
    plot_dir: PlotDir = None,
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
    _need_spu()
    from cloister.models.source import find_model
    from cloister_bench.mpc.figures import FIGURES
    from cloister_bench.mpc.plan import FULL, PARTS, QUICK, VARIANTS
    from cloister_bench.mpc.quality import QualityRow, run_quality
    from cloister_bench.mpc.results import Results, tables, write_report
    from cloister_bench.mpc.run import Bench
    from cloister_mpc.provider.calibration import prepare

    basis = QUICK if quick else FULL
    plan = replace(
        basis,
        lengths=_lengths(lengths) if lengths else basis.lengths,
        ways=known_names(methods, "method", tuple(VARIANTS)) if methods else basis.ways,
        repeats=repeats or basis.repeats,
        seconds=seconds or basis.seconds,
    )
    wanted = set(known_names(parts, "part", PARTS) if parts else plan.parts)
    folder = find_model(model)
    results = Results(plan, folder.name)

    def quality(progress: Callable[[str], None]) -> list[QualityRow]:
        return run_quality(folder.path, quality_data, plan, progress)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        shape, _ = prepare(folder)
        Bench(results, shape, bars, save, quality=quality).run(wanted)

    document = measure_suite(results, measure, json_file, plot_dir, tables, FIGURES)
    if report_file:
        write_report(document, report_file)
    raise_if_failed(results)
    if results.left_out:
        typer.echo(f"Left out for lack of time: {', '.join(results.left_out)}. Give it more with --seconds.", err=True)


def _need_spu() -> None:
    from importlib.util import find_spec

    if find_spec("spu") is None or find_spec("jax") is None:
        raise SetupError("Generation on shares is not installed.", hint="`make mpc` installs it (Python 3.11).")


def _lengths(text: str) -> tuple[int, ...]:
    chosen = tuple(numbers(text))
    if any(length % 16 or length < 64 for length in chosen):
        raise SetupError("Sequences are measured at multiples of 16 tokens, from 64 on.", hint="Try 256,1024.")
    return chosen
