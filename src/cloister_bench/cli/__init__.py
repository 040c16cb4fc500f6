"""`cloister bench`: the measurements, with a progress bar, a table and a plot. Sibling packages measure."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import DEFAULT_KEY, DEFAULT_URL, ApiKey, FriendlyGroup, Url, numbers
from cloister.errors import ServiceUnavailable, SetupError
from cloister_bench.cli.detection import bench_detection
from cloister_bench.cli.gpu import bench_gpu, bench_gpu_all
from cloister_bench.cli.obfuscation import bench_obfuscation
from cloister_bench.cli.sharing import bench_sharing
from cloister_bench.cli.suite import bench_mpc, bench_spd, progress_bars, save_document, show_document
from cloister_bench.messages import Endpoint, Workload

if TYPE_CHECKING:
    from cloister.addresses import HttpAddress
    from cloister_bench.report import BenchReport, Percentiles
    from cloister_bench.suite.documents import Table

bench = typer.Typer(
    cls=FriendlyGroup,
    no_args_is_help=True,
    add_completion=False,
    help="Measure servers: ours, or any that speaks OpenAI's API.",
)
bench.command("spd")(bench_spd)
bench.command("mpc")(bench_mpc)
bench.command("detection")(bench_detection)
bench.command("sharing")(bench_sharing)
bench.command("obfuscation")(bench_obfuscation)
bench.command("gpu")(bench_gpu)
bench.command("gpu-all")(bench_gpu_all)


@bench.command("serve")
def bench_serve(
    url: Url = DEFAULT_URL,
    users: Annotated[str, typer.Option(help="How many users at once: one run for each number.")] = "1,8,32",
    input_tokens: Annotated[int, typer.Option(min=1, help="Tokens in each prompt.")] = 64,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens in each answer.")] = 64,
    requests_per_user: Annotated[int, typer.Option(min=1, help="Requests each user sends, one after another.")] = 4,
    warmup: Annotated[int, typer.Option(min=0, help="Requests each user sends before the clock runs.")] = 1,
    model: Annotated[str | None, typer.Option(help="Which model.", show_default="the server's first")] = None,
    endpoint: Annotated[
        Endpoint, typer.Option(help="`completions` sends token ids, so that lengths are exact; `chat` sends words.")
    ] = "completions",
    token_ids: Annotated[
        str, typer.Option(metavar="LOW-HIGH", help="Ids that prompts are drawn from; below the vocabulary's size.")
    ] = "1000-20000",
    protection: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Level of protection to ask for.", show_default="the server's")
    ] = None,
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Every user names a session, and so keeps its vault between requests.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Draws the prompts; a new seed avoids a cache's help.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a request may take before it counts as lost.")] = 300,
    api_key: ApiKey = DEFAULT_KEY,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help='Write the numbers here; "-" prints them.')
    ] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw them here, as PNG.")] = None,
) -> None:
    """Load a server with users who stream answers; report throughput, time to first token and time between tokens.

    Every user has its own connection and sends its next request when its last has ended. Throughput is output tokens
    over the time from the first request sent to the last token received. At levels with vaults every request has one
    of its own, or with --sessions every user.

    Examples:

      cloister bench serve

      cloister bench serve --users 1,8,32 --json run.json --plot run.png

      cloister bench serve --protection open

      cloister bench serve --url http://127.0.0.1:9000 --endpoint chat
    """
    import uvloop

    from cloister.addresses import HttpAddress
    from cloister_bench.report import kinds_of_errors, plot_runs

    load = Workload(
        endpoint=endpoint,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        requests_per_user=requests_per_user,
        warmup=warmup,
        seed=seed,
        timeout_s=timeout,
        token_ids=_range(token_ids),
        protection=protection,
        sessions=sessions,
    )
    report = uvloop.run(_measure_all(HttpAddress.parse(url), api_key, model, load, numbers(users)))
    show_document(report.as_json(), json_file, lambda _: [_table(report)])
    save_document(report.as_json(), json_file)
    if plot_file:
        plot_runs({report.model: report.runs}, plot_file, f"{input_tokens} tokens in, {output_tokens} out")
    if not any(run.output_tokens for run in report.runs):
        raise ServiceUnavailable(f"No request was answered ({kinds_of_errors(report.runs)}).")


async def _measure_all(
    address: HttpAddress, api_key: str, model: str | None, load: Workload, users: list[int]
) -> BenchReport:
    from cloister_bench.load import first_model, measure
    from cloister_bench.report import BenchReport

    listed = await first_model(address, api_key)
    model = model or listed
    runs = []
    with progress_bars() as progress:
        for count in users:
            total = count * (load.warmup + load.requests_per_user)
            task = progress.add_task(f"{count} user{'s' if count > 1 else ''}", total=total)
            runs.append(await measure(address, api_key, model, load, count, partial(progress.advance, task)))
    return BenchReport(runs, str(address), model, load)


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit() and int(low) < int(high)):
        raise SetupError("--token-ids takes two numbers, the lower first.", hint="Like: --token-ids 1000-20000")
    return int(low), int(high)


def _table(report: BenchReport) -> Table:
    from cloister_bench.report import kinds_of_errors
    from cloister_bench.suite.documents import Table

    load, rows = report.load, []
    for run in report.runs:
        errors = f"{run.errors} ({kinds_of_errors([run])})" if run.errors else "0"
        errors += f", {run.short_answers} short answers" if run.short_answers else ""
        rate = f"{run.output_tokens_per_s:.1f}"
        rows.append([str(run.users), rate, _three(run.ttft_ms), _three(run.itl_ms), errors])
    return Table(
        f"{report.model} at {report.url}" + (f", {load.protection}" if load.protection else ""),
        ("users", "output tokens/s", "first token", "between tokens", "errors"),
        rows,
        labels=0,
        caption=f"{load.input_tokens} tokens in, {load.output_tokens} out; latencies in ms, p50 / p95 / p99",
    )


def _three(latency: Percentiles) -> str:
    return " / ".join(
        "-" if each is None else f"{each:.{0 if each >= 100 else 1}f}"
        for each in (latency.p50, latency.p95, latency.p99)
    )
