"""`cloister bench levels`: the README's table of levels."""

from collections.abc import Callable
from dataclasses import replace

import typer

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import PRINTED, Bars, Output, measure_suite, numbers, raise_if_failed
from cloister_bench.levels.plan import FULL, QUICK


class LevelsOptions(Output):
    quick: bool = option(False, "Short answers, once each, 1 and 8 users: to see that all works.")
    model: str | None = option(None, "Model to measure, as for `serve`.", show_default="SmolLM2-135M-Instruct")
    users: str | None = option(None, "How many users at once.", show_default=",".join(map(str, FULL.users)))
    rounds: int | None = option(None, "Times each side is measured, in turn.", ge=1, show_default=str(FULL.rounds))


@settings_command(LevelsOptions)
def bench_levels(options: LevelsOptions) -> None:
    """Measure every level of protection on this machine, and print the README's table in Markdown.

    Starts one server with all levels. A plain call and a named session are measured in turn, round by round; a ratio
    compares with `open` in the same round. `mpc` comes last: its parties take cores and memory.

    Examples:

      cloister bench levels --json levels.json --plot-dir plots

      cloister bench levels --quick --users 1,4
    """
    from cloister.models.source import find_model
    from cloister_bench.levels.plan import Results, readme_table
    from cloister_bench.levels.run import Bench
    from cloister_bench.peers import figures, tables

    basis = QUICK if options.quick else FULL
    users = tuple(numbers(options.users)) if options.users else basis.users
    plan = replace(basis, users=users, rounds=options.rounds or basis.rounds)
    folder = find_model(options.model)
    results = Results(plan, folder.name)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        Bench(results, folder, bars, save).run()

    document = measure_suite(results, measure, options, tables, figures("levels"))
    if options.json_file != PRINTED:
        typer.echo(readme_table(document))
    raise_if_failed(results)
