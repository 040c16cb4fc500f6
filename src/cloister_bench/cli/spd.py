"""`cloister bench spd`: what vaults cost on this machine."""

from collections.abc import Callable
from dataclasses import replace

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite, numbers, raise_if_failed
from cloister_bench.spd.plan import FULL, PARTS, QUICK


class SpdOptions(Output):
    quick: bool = option(False, "Two minutes instead of nine: less, and once each.")
    model: str | None = option(None, "Model to measure, as for `serve`.", show_default="SmolLM2-135M-Instruct")
    larger_model: str | None = option(None, "The second model.", show_default="random weights, 362M parameters")
    users: str | None = option(None, "How many users at once.", show_default=",".join(map(str, FULL.users)))
    input_tokens: int = option(FULL.input_tokens, "Tokens in each prompt.", ge=1)
    output_tokens: int = option(FULL.output_tokens, "Tokens in each answer.", ge=2)
    rounds: int | None = option(None, "Times each side is measured, in turn.", ge=1, show_default=str(FULL.rounds))
    requests_per_user: int | None = option(
        None, "Requests each user sends in a round.", ge=1, show_default=str(FULL.requests)
    )
    parts: str = option(",".join(PARTS), "What to measure.")
    seconds: float | None = option(
        None,
        "About how long it may take; rounds that do not fit are left out.",
        ge=1,
        show_default=f"{FULL.seconds:g}",
    )
    seed: int = option(FULL.seed, "Draws the prompts.")
    serve_arg: list[str] | None = option(None, "One more argument for `cloister serve`.", metavar="ARG")


@settings_command(SpdOptions)
def bench_spd(options: SpdOptions) -> None:
    """Measure what vaults cost on this machine: `open`, `partitioned` and `isolated` side by side.

    Starts its own servers and draws Petridish's Figures 4–7: answer times over users, model sizes and lengths, and
    where a step's time goes; also first tokens, how soon a new user's vault is ready, and, as root, memory. All sides
    are measured in turn, round by round. Anything else that runs on this machine is in the numbers.

    Examples:

      cloister bench spd --json spd.json --plot-dir plots

      cloister bench spd --users 1,8 --parts users,breakdown --rounds 5
    """
    import uvloop

    from cloister.models.source import find_model
    from cloister_bench.spd.results import FIGURES, Results, tables
    from cloister_bench.spd.run import Bench

    basis = QUICK if options.quick else FULL
    plan = replace(
        basis,
        users=tuple(numbers(options.users)) if options.users else basis.users,
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        rounds=options.rounds or basis.rounds,
        requests=options.requests_per_user or basis.requests,
        seconds=options.seconds or basis.seconds,
        seed=options.seed,
    )
    wanted = set(known_names(options.parts, "part", PARTS))
    folder = find_model(options.model)
    larger = find_model(options.larger_model) if options.larger_model else None
    results = Results(plan, folder.name, options.quick)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        bench = Bench(results, folder, bars, save, larger=larger, arguments=options.serve_arg or ())
        uvloop.run(bench.run(wanted))

    measure_suite(results, measure, options, tables, FIGURES)
    raise_if_failed(results)
