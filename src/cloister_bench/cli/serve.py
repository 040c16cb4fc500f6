"""`cloister bench serve`: load one server with users who stream answers."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from cloister.cli.options import DEFAULT_URL, settings_command
from cloister.config import DEVELOPMENT_KEY, option
from cloister.errors import ServiceUnavailable, SetupError
from cloister_bench.cli.suite import numbers, progress_bars, save_document, show_document
from cloister_bench.messages import Endpoint, Workload

if TYPE_CHECKING:
    from cloister.addresses import HttpAddress
    from cloister_bench.report import BenchReport, Percentiles
    from cloister_bench.suite.documents import Table


class ServerLoad(BaseModel):
    url: str = option(DEFAULT_URL, "Where the server listens; `/v1` may be left out.")
    users: str = option("1,8,32", "How many users at once: one run for each number.")
    input_tokens: int = option(64, "Tokens in each prompt.", ge=1)
    output_tokens: int = option(64, "Tokens in each answer.", ge=1)
    requests_per_user: int = option(4, "Requests each user sends, in sequence.", ge=1)
    warmup: int = option(1, "Requests each user sends before the clock runs.", ge=0)
    model: str | None = option(None, "Which model.", show_default="the server's first")
    endpoint: Endpoint = option(
        "completions", "`completions` sends token ids, so that lengths are exact; `chat` sends words."
    )
    token_ids: str = option(
        "1000-20000", "Ids that prompts are drawn from; below the vocabulary's size.", metavar="LOW-HIGH"
    )
    protection: str | None = option(
        None, "Level of protection to ask for.", metavar="LEVEL", show_default="the server's"
    )
    sessions: bool = option(False, "Every user names a session, and so keeps its vault between requests.")
    seed: int = option(0, "Draws the prompts; a new seed avoids a cache's help.")
    timeout: float = option(300, "Seconds a request may take before it counts as lost.", ge=0.1)
    api_key: str = option(
        DEVELOPMENT_KEY,
        "API key. Better in the environment: other users of this machine can see a process's arguments.",
        envvar="CLOISTER_API_KEY",
        show_default="the development key",
    )
    json_file: Path | None = option(None, 'Write the numbers here; "-" prints them.', name="json", metavar="FILE")
    plot_file: Path | None = option(None, "Draw them here, as PNG.", name="plot", metavar="FILE")


@settings_command(ServerLoad)
def bench_serve(options: ServerLoad) -> None:
    """Load a server with users who stream answers; report throughput, time to first token and time between tokens.

    Every user has its own connection and sends its next request when its last has ended. Throughput is output tokens
    over the time from the first request sent to the last token received. At levels with vaults every request gets a
    vault, or with --sessions every user.

    Examples:

      cloister bench serve --users 1,8,32 --protection open --json run.json --plot run.png

      cloister bench serve --url http://127.0.0.1:9000 --endpoint chat
    """
    import uvloop

    from cloister.addresses import HttpAddress
    from cloister_bench.report import kinds_of_errors, plot_runs

    same = options.model_dump(include={field.name for field in fields(Workload)} - {"token_ids"})
    load = Workload(timeout_s=options.timeout, token_ids=_range(options.token_ids), **same)
    address = HttpAddress.parse(options.url)
    report = uvloop.run(_measure_all(address, options.api_key, options.model, load, numbers(options.users)))
    show_document(report.as_json(), options.json_file, lambda _: [_table(report)])
    save_document(report.as_json(), options.json_file)
    if options.plot_file:
        title = f"{load.input_tokens} tokens in, {load.output_tokens} out"
        plot_runs({report.model: report.runs}, options.plot_file, title)
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
