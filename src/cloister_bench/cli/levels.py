"""`cloister bench levels`: the README's table of levels."""

from collections.abc import Callable

import typer

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import PRINTED, Bars, Output, measure_suite, numbers, raise_if_failed


class LevelsOptions(Output):
    model: str | None = option(None, "Model to measure, as for `serve`.", show_default="SmolLM2-135M-Instruct")
    users: str = option("1,8,32", "How many users at once.")
    rounds: int = option(2, "Times each side is measured, in turn.", ge=1)


@settings_command(LevelsOptions)
def bench_levels(options: LevelsOptions) -> None:
    """Measure every level of protection on this machine, and print the README's table in Markdown.

    Starts one server with all levels. A plain call and a named session are measured in turn, round by round; a ratio
    compares with `open` in the same round. `mpc` comes last: its parties take cores and memory.

    Examples:

      cloister bench levels --json levels.json --plot-dir plots

      cloister bench levels --users 1,4 --rounds 1
    """
    from cloister.models.source import find_model
    from cloister_bench.levels import Bench, Plan, Results, readme_table
    from cloister_bench.peers import figures, tables

    folder = find_model(options.model)
    results = Results(Plan(tuple(numbers(options.users)), rounds=options.rounds), folder.name)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        Bench(results, bars, save).run(folder)

    document = measure_suite(results, measure, options, tables, figures("levels"))
    if options.json_file != PRINTED:
        typer.echo(readme_table(document))
    raise_if_failed(results)
