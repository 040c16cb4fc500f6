"""`cloister plan`: how many nodes users need, by simulation of a machine that was measured."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel

from cloister.cli.options import FriendlyGroup, KeyOptions, settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister.files import read_private
from cloister.levels import LEVELS, LevelName
from cloister_bench.cli.suite import PRINTED, Output, known_names, progress_bars, show_tables

if TYPE_CHECKING:
    from cloister_bench.capacity.traces import Trace

NAMES: tuple[LevelName, ...] = tuple(level.name for level in LEVELS.values() if not level.slow)


class _Group(FriendlyGroup):
    """`plan --users …` is `plan nodes --users …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_options = bool(args) and args[0].startswith("-") and args[0] not in ctx.help_option_names
        return list(super().parse_args(ctx, ["nodes", *args] if is_options else args))


plan = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    help="Plan a cloud: nodes, memory and cost for a number of users, from measured numbers.\n\n"
    "Examples:\n\n  cloister plan --users 20000 --machine machine.json --first-token 10\n\n"
    "  cloister plan measure --server http://127.0.0.1:8000 -o machine.json",
)


class TraceOptions(BaseModel):
    trace: Path | None = option(
        None, "When requests come: Azure's CSV or Mooncake's JSONL.", metavar="FILE", show_default="Poisson arrivals"
    )
    minutes: float = option(60.0, "How much of it.", ge=0.1, le=10_080)
    prompt_tokens: int = option(1155, "Without --trace: the mean prompt.", ge=1, le=1_000_000)
    output_tokens: int = option(211, "Without --trace: the mean answer.", ge=1, le=1_000_000)
    seed: int = option(0, "Another one draws other arrivals, nodes and copies.", ge=0)

    def read(self, per_second: float) -> "Trace":
        from cloister_bench.capacity.traces import read_trace, synthetic

        if self.trace is not None:
            return read_trace(self.trace, self.minutes)
        return synthetic(max(per_second, 0.01), 60 * self.minutes, self.prompt_tokens, self.output_tokens, self.seed)


class NodesOptions(TraceOptions, Output):
    users: int = option(..., "How many people use the cloud.", ge=1, le=1_000_000_000)
    per_hour: float = option(10.0, "Requests of one user in an hour: your assumption.", ge=0.001, le=10_000)
    machine: str = option(..., "A file of `plan measure`, or the name of a profile that is packaged.")
    model: str | None = option(None, "The model that the machine must have been measured with.")
    levels: str = option("partitioned", "Levels with their shares of the requests, like partitioned=0.9,open=0.1.")
    first_token: float = option(5.0, "Seconds: the 99th percentile at most.", ge=0.001, le=3600, metavar="SECONDS")
    busy: float = option(0.7, "Share of the time in which nodes compute, at most.", ge=0.01, le=0.99)
    away: int = option(1, "Nodes that are away all the time.", ge=0, le=100)
    keys: bool = option(
        False, "Users have API keys, each its own share; else anonymous tokens, with one share for all."
    )
    verify: float = option(0.1, "Share of answers that vaults verify.", ge=0, le=1)
    price_per_hour: float | None = option(None, "Of one node, in any currency.", ge=0)
    count: int | None = option(
        None, "Simulate this number of nodes; do not search.", ge=1, le=4096, name="nodes", show_default="search"
    )


class MeasureOptions(KeyOptions):
    server: str = option("http://127.0.0.1:8000", "The node.", metavar="URL")
    output: Path = option(Path("machine.json"), "The profile; - prints it.", name="out", metavar="FILE")
    levels: str = option("partitioned,open", "What to measure.")
    pid: int | None = option(None, "The node's process, if it runs here: its memory is measured, too.", ge=1)
    keys: Path | None = option(
        None,
        "API keys of several tenants, one in a line; the first is an operator's.",
        show_default="$CLOISTER_API_KEY",
    )
    rows: str = option("1,2,4,8,16", "Numbers of answers at once.")


class CheckOptions(BaseModel):
    model: str | None = option(None, "Model to serve, as for `serve`.", show_default="SmolLM2-135M-Instruct")
    level: str = option("partitioned", "Level of all requests.")
    trace: Path | None = option(None, "A trace; else Poisson arrivals.", metavar="FILE", show_default="synthetic")
    shrink: float = option(16.0, "Divide the trace's lengths by this: it was recorded on larger machines.", ge=1)
    requests: int = option(120, "Of all three nodes.", ge=12, le=100_000)
    per_second: float = option(0.5, "Requests of one node in a second.", ge=0.001, le=1000)
    as_json: bool = option(False, "Print JSON instead of a table.", name="json")


@contextmanager
def _saying() -> Iterator[Callable[[str, float], None]]:
    with progress_bars() as progress:
        task = progress.add_task("", total=1000)
        yield lambda what, done: progress.update(task, completed=int(1000 * done), description=what)


def shares(text: str) -> dict[LevelName, float]:
    """SetupError unless each is a level, and they make one."""
    pairs = [each.partition("=") for each in text.split(",")]
    known_names(",".join(name for name, _, _ in pairs), "level to plan", NAMES)
    try:
        parsed = {name: float(share or 1.0) for each, _, share in pairs for name in NAMES if name == each.strip()}
    except ValueError:
        parsed = {}
    if len(parsed) < len(pairs) or any(each <= 0 for each in parsed.values()) or abs(sum(parsed.values()) - 1) > 1e-6:
        raise SetupError("--levels has shares that do not make 1.", hint="Like: --levels partitioned=0.9,open=0.1")
    return parsed


@settings_command(NodesOptions)
def plan_nodes(options: NodesOptions) -> None:
    """Find the smallest number of nodes at which 99 of 100 first tokens are in time, and simulate it.

    Each request goes to a random node, as clients choose it. Nothing is measured here: the machine was measured before.

    Examples:

      cloister plan --users 20000 --machine machine.json --trace AzureLLMInferenceTrace_conv.csv --price-per-hour 2.5

      cloister plan --users 500 --machine machine.json --nodes 12 --json -
    """
    from cloister_bench.capacity.machine import find_machine
    from cloister_bench.capacity.plan import Aims, Planner
    from cloister_bench.capacity.report import FIGURES, document_of, tables
    from cloister_bench.suite.documents import draw_figures, write_json

    machine = find_machine(options.machine)
    if options.model not in (None, machine.model):
        hint = f"Measure it with {options.model}, or leave out --model."
        raise SetupError(f"{options.machine} was measured with {machine.model}.", hint=hint)
    aims = Aims(
        options.users,
        shares(options.levels),
        options.per_hour,
        first_s=options.first_token,
        busy=options.busy,
        away=options.away,
        tokens=not options.keys,
        verified=options.verify,
        price_per_hour=options.price_per_hour,
        seed=options.seed,
    )
    with _saying() as say:
        planner = Planner(machine, options.read(aims.per_second), aims, say)
        count = options.count or planner.find()
        found = planner.simulate(count)
    document = document_of(planner.report(count, found), found)
    if options.json_file == PRINTED:
        typer.echo(json.dumps(document, indent=2))
    else:
        show_tables(tables(document))
        if options.json_file:
            write_json(document, options.json_file)
    if options.plot_dir:
        draw_figures(document, options.plot_dir, FIGURES)


@settings_command(MeasureOptions)
def plan_measure(options: MeasureOptions) -> None:
    """Measure a live node by a few minutes of requests, and write the profile of its machine. Nothing else should run.

    Examples:

      cloister plan measure --server http://127.0.0.1:8000 --out machine.json

      cloister plan measure --pid 4711 --levels open,partitioned --keys keys.txt
    """
    from cloister_bench.capacity.measure import Series, measure, server_at
    from cloister_bench.cli.suite import numbers

    keys: list[str | None] = [options.api_key()]
    if options.keys is not None:
        keys = [*read_private(options.keys, 1 << 16, "keys").decode("ascii", "replace").split()]
    if not keys:
        raise SetupError("--keys has no key.", hint="One key in each line.")
    levels = known_names(options.levels, "level to measure", NAMES)
    with _saying() as say:
        server = server_at(options.server, keys)
        if absent := set(levels) - set(server.levels):
            hint = f"It offers {', '.join(server.levels)}."
            raise SetupError(f"The node does not offer {sorted(absent)[0]}.", hint=hint)
        series = Series(tuple(sorted(set(numbers(options.rows)))))
        machine = measure(server, levels, series, lambda what: say(what, 0.0), options.pid)
    if options.output == PRINTED:
        typer.echo(machine.encode())
        return
    from cloister.files import needed, write_whole

    with needed(f"{options.output} cannot be written", "Name another file."):
        write_whole(options.output.absolute(), machine.encode())
    typer.echo(f"Wrote {options.output}: {machine.processor}, {machine.model}, {', '.join(machine.levels)}.")


@settings_command(CheckOptions)
def plan_check(options: CheckOptions) -> None:
    """Compare the simulation with three real nodes, which are started here and measured in the same run.

    While one node replays its share, the others are stopped: each has the cores as if it were alone.

    Examples:

      cloister plan check --requests 120 --per-second 0.5

      cloister plan check --level open --trace AzureLLMInferenceTrace_conv.csv --shrink 16 --json
    """
    from cloister.models.source import find_model
    from cloister_bench.capacity import check
    from cloister_bench.capacity.measure import Series
    from cloister_bench.capacity.report import check_table
    from cloister_bench.capacity.traces import read_trace, shrunk, synthetic

    [level] = known_names(options.level, "level", NAMES)
    rate = check.NODES * options.per_second
    if options.trace is None:
        trace = synthetic(rate, options.requests / rate, 64, 24)
    else:
        trace = shrunk(read_trace(options.trace), options.shrink, rate, options.requests)
    home = Path(mkdtemp(prefix="cloister-plan-"))  # stays if a node does not start
    with _saying() as say:
        done = check.run(find_model(options.model).path, home, level, trace, Series(), lambda what: say(what, 0.0))
    rmtree(home)
    document = done.document()
    typer.echo(json.dumps(document, indent=2)) if options.as_json else show_tables([check_table(document)])


plan.command("nodes")(plan_nodes)
plan.command("measure")(plan_measure)
plan.command("check")(plan_check)
