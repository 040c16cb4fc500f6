"""`cloister bench peers`: one server, or several in one run."""

from collections.abc import Callable

from cloister.cli.options import DEFAULT_URL, KeyOptions, settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, measure_suite, numbers, raise_if_failed


class PeersOptions(Output, KeyOptions):
    server: list[str] | None = option(
        None,
        "[NAME=]URL, or [NAME=]COMMAND that starts one, in which {port} becomes a free port, or llama.cpp:Q8_0 or "
        "llama.cpp:Q4_0 with the default model, installed on first use. The first is the base.",
        metavar="SERVER",
        show_default=DEFAULT_URL,
    )
    levels: str | None = option(
        None,
        "Levels, asked of servers that have them; `partitioned+session`: every user keeps a session.",
        show_default="the server's default",
    )
    users: str = option("1,8,32", "How many users at once.")
    input_tokens: int = option(64, "Tokens in each prompt.", ge=1)
    output_tokens: int = option(64, "Tokens in each answer.", ge=1)
    requests_per_user: int = option(4, "Requests each user sends in a round, in sequence.", ge=1)
    rounds: int = option(1, "Times each server is measured, in turn.", ge=1)


@settings_command(PeersOptions)
def bench_peers(options: PeersOptions) -> None:
    """Load one server, or several in turn, with users who stream answers: Cloister and any that speaks OpenAI's API.

    Every user sends its next request, on a new connection, when its last has ended. Throughput is output tokens
    over the time from the first request sent to the last token received. A ratio compares with the first server in the
    same round. A server started here is paused while another is measured; one given by its address is not.

    Examples:

      cloister bench peers --levels open,partitioned,partitioned+session --json run.json --plot-dir plots

      cloister bench peers --server 'vllm=DIR/bin/python -m vllm.entrypoints.openai.api_server --model FOLDER --port {port}' --server 'cloister=cloister serve --model FOLDER --port {port}' --levels open --rounds 3
    """  # noqa: E501 (a command that can be copied)
    from cloister_bench.load import Workload
    from cloister_bench.peers import Bench, Comparison, Plan, figures, server_of, tables

    load = Workload(options.input_tokens, options.output_tokens, options.requests_per_user)
    plan = Plan(tuple(numbers(options.users)), options.rounds, load)
    servers = [server_of(each, options.api_key()) for each in options.server or (DEFAULT_URL,)]
    levels = [each.strip() for each in options.levels.split(",")] if options.levels else []
    results = Comparison(plan, ", ".join(server.name for server in servers))

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        Bench(results, bars, save).run(servers, levels)

    measure_suite(results, measure, options, tables, figures("peers"))
    raise_if_failed(results)
