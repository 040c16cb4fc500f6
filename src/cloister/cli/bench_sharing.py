"""`cloister bench sharing`: what other tenants learn from the prefix cache, and what it saves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from cloister.cli.bench_suite import Bars, JsonFile, PlotDir, known_names, measure_suite
from cloister.levels import LEVELS, OPEN, PolicyName

if TYPE_CHECKING:
    from cloister.bench.sharing.attack import Caller


def bench_sharing(
    policies: Annotated[
        str, typer.Option(help="Which policies, with commas between.")
    ] = "none,partition,safekv,global",
    trials: Annotated[int, typer.Option(min=1, help="Secrets to attack under each policy.")] = 50,
    candidates: Annotated[int, typer.Option(min=2, max=64, help="How many the attacker must choose from.")] = 4,
    model: Annotated[str | None, typer.Option(help="The model to serve.", show_default="the default model")] = None,
    seed: Annotated[int, typer.Option(help="What secrets are drawn from.")] = 1,
    json_file: JsonFile = None,
    plot_dir: PlotDir = None,
) -> None:
    """Attack the prefix cache as another tenant would, policy by policy, and measure what a clean prompt saves.

    A server is started for each policy. The attacker has a key of its own, knows what stands before and after a secret,
    and must choose the victim's among candidates: by the time to the first token, or by `cached_tokens`. `safekv` is
    asked for by the level `shared`, the others by `--prefix-policy`.

    Example:

      cloister bench sharing --trials 50 --json sharing.json --plot-dir plots
    """
    from cloister.bench.sharing.attack import attacks, reuse
    from cloister.bench.sharing.figures import FIGURES
    from cloister.bench.sharing.results import Plan, Results, tables

    chosen = known_names(policies, "policy", get_args(PolicyName))
    results = Results(Plan(trials, candidates, seed, chosen), model or "the default model")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        bars.begin("policies", len(chosen))
        with TemporaryDirectory(prefix="cloister-sharing-") as folder:
            for policy in chosen:
                bars.say(policy)
                with _Served(policy, model, Path(folder)) as (victim, attacker):
                    results.reused[policy] = reuse(victim, attacker, seed)
                    results.guesses[policy] = attacks(victim, attacker, trials, candidates, seed)
                results.seconds = monotonic() - began
                bars.advance(policy)
                save()

    measure_suite(results, measure, json_file, plot_dir, tables, FIGURES)


class _Served:
    """Two tenants of a server of its own with this policy."""

    def __init__(self, policy: str, model: str | None, folder: Path) -> None:
        from cloister.bench.connection import on_free_port
        from cloister.bench.servers import ServerProcess
        from cloister.keys import key_line

        keys = folder / "keys.toml"
        keys.write_text("\n".join(["[keys]", key_line("victim", "victim"), key_line("attacker", "attacker")]))
        address = on_free_port()
        command = [sys.executable, "-m", "cloister", "serve", "--port", str(address.port), "--keys", str(keys)]
        command += ["--mpc", "off", *(["--model", model] if model else [])]
        examined = policy == "safekv"
        command += ["--detector"] if examined else ["--no-detector", "--prefix-policy", policy]
        self._level = next(level.name for level in LEVELS.values() if level.examined) if examined else OPEN
        self._server = ServerProcess("cloister", command, address, folder / f"{policy}.log", api_key="victim")

    def __enter__(self) -> tuple[Caller, Caller]:
        from cloister.bench.sharing.attack import Caller

        server = self._server.__enter__()
        try:
            name = asyncio.run(server.ready(300))
        except BaseException:
            server.__exit__(None, None, None)
            raise
        url = str(server.address)
        self._callers = [Caller(url, name, key, self._level) for key in ("victim", "attacker")]
        return self._callers[0], self._callers[1]

    def __exit__(self, *_: object) -> None:
        for caller in self._callers:
            caller.close()
        self._server.__exit__(None, None, None)
