"""`cloister bench cloud`: what relay and tokens cost."""

from collections.abc import Callable

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, measure_suite, numbers, raise_if_failed


class CloudOptions(Output):
    model: str | None = option(None, "Model to measure, as for `serve`.", show_default="SmolLM2-135M-Instruct")
    users: str = option("1,8", "How many users at once.")
    rounds: int = option(3, "Times each side is measured, in turn.", ge=1)


@settings_command(CloudOptions)
def bench_cloud(options: CloudOptions) -> None:
    """Measure what anonymity costs: the same node through a sealing proxy, direct, through a relay, with tokens, both.

    Also measured: tokens issued and redeemed in a second of one core. Ratios compare within a round.

    Examples:

      cloister bench cloud --json cloud.json --plot-dir plots

      cloister bench cloud --users 4 --rounds 1
    """
    from cloister.models.source import find_model
    from cloister_bench.cloud import Bench, Plan, Results, tables
    from cloister_bench.peers import figures

    folder = find_model(options.model)
    results = Results(Plan(tuple(numbers(options.users)), rounds=options.rounds), folder.name, base="direct")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        Bench(results, bars, save).run(folder)

    measure_suite(results, measure, options, tables, figures("cloud"))
    raise_if_failed(results)
