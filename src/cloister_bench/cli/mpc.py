"""`cloister bench mpc`: what a token costs on secret shares."""

from collections.abc import Callable

from cloister.cli.options import settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister_bench.cli.suite import Bars, Output, measure_suite, numbers, raise_if_failed


class MpcOptions(Output):
    model: str | None = option(None, "Model whose shape is measured.", show_default="SmolLM2-135M-Instruct")
    lengths: str = option("256,512,1024,2048", "Tokens in the sequence.")
    repeats: int = option(3, "Times each program is run; the middle time counts.", ge=1)


@settings_command(MpcOptions)
def bench_mpc(options: MpcOptions) -> None:
    """Measure what a token costs on secret shares, with and without MPCache.

    Runs three parties as threads of this process, and on them the programs of a generation's step on
    random numbers. Bytes and messages are exact; seconds are this machine's, with whatever else it does. From all three
    follow the times on a LAN (377 MB/s, 0.3 ms) and a WAN (40 MB/s, 40 ms).

    Examples:

      cloister bench mpc --json mpc.json --plot-dir plots

      cloister bench mpc --lengths 256 --repeats 1
    """
    from cloister_mpc.offer import require_packages

    require_packages()
    from cloister.models.source import find_model
    from cloister_bench.mpc.steps import FIGURES, Bench, Plan, Results, tables
    from cloister_mpc.provider.calibration import prepare

    plan = Plan(_lengths(options.lengths), options.repeats)
    folder = find_model(options.model)
    results = Results(plan, folder.name)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        shape, _ = prepare(folder)
        Bench(results, shape, bars, save).run()

    measure_suite(results, measure, options, tables, FIGURES)
    raise_if_failed(results)


def _lengths(text: str) -> tuple[int, ...]:
    chosen = tuple(numbers(text))
    if any(length % 16 or length < 64 for length in chosen):
        raise SetupError("Sequences are measured at multiples of 16 tokens, from 64 on.", hint="Try 256,1024.")
    return chosen
