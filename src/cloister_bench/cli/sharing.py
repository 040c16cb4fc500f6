"""`cloister bench sharing`: what the prefix cache saves by policy; with --attack, what other tenants learn from it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, get_args

from cloister.cli.options import settings_command
from cloister.config import option
from cloister.levels import PolicyName
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite

if TYPE_CHECKING:
    from cloister_bench.sharing.results import Results

ATTACKED = "none,partition,safekv,global"
FLOODED_TOKENS = 4096  # no eviction of the victim's prompt between two looks


class SharingOptions(Output):
    attack: bool = option(False, "Attack the cache instead, as other tenants would.")
    policies: str | None = option(None, "Which policies, with commas between.", show_default="all")
    workloads: str | None = option(None, "Which workloads, with commas between.", show_default="all that have data")
    rounds: int = option(1, "How often each workload is sent; the median counts.", ge=1)
    trials: int = option(50, "With --attack: secrets to attack under each policy.", ge=1)
    adaptive_trials: int = option(20, "With --attack: secrets for the attacker that continues part by part.", ge=0)
    candidates: int = option(4, "How many the attacker must choose from.", ge=2, le=64)
    kv_cache_mib: int | None = option(
        None,
        "With --attack: the server's KV cache, small enough to be flooded.",
        ge=1,
        show_default=f"room for {FLOODED_TOKENS} tokens",
    )
    data: Path | None = option(None, "Folder with chat/ (traces) and pii/.", metavar="DIR", show_default="none")
    model: str | None = option(None, "The model to serve.", show_default="the default model")
    seed: int = option(1, "What secrets and texts are drawn from.")
    quick: bool = option(False, "A few requests of each: to see that it works.")


@settings_command(SharingOptions)
def bench_sharing(options: SharingOptions) -> None:
    """Measure what sharing computed prompts saves, policy by policy, or attack it.

    A server is started for each policy: `safekv` is asked for by the level `shared`, the others by `--prefix-policy`.
    Workloads: single requests with something private, conversations, one long system prompt for 32 tenants, and the
    traces of Mooncake and Azure, scaled down.

    Attackers have their own keys, know what stands before and after a secret, and choose the victim's among
    candidates: by the time to the first token, or by `cached_tokens`. The adaptive one finds a secret part by part,
    with several identities, and floods the cache between two looks.

    Examples:

      cloister bench sharing --data ../shared/data --json sharing-policies.json --plot-dir plots

      cloister bench sharing --attack --trials 50 --json sharing.json --plot-dir plots
    """
    from cloister_bench.sharing.results import FIGURES, Plan, Results, tables
    from cloister_bench.sharing.workloads import QUICK, TRACES, WORKLOADS, Scale

    attack, model = options.attack, options.model
    names = options.policies or (ATTACKED if attack else ",".join(_POLICIES))
    chosen = known_names(names, "policy", _POLICIES)
    possible = [name for name in WORKLOADS if options.data is not None or name not in TRACES]
    workloads = known_names(options.workloads or ",".join(possible), "workload", tuple(WORKLOADS))
    plan = Plan(
        min(options.trials, 2) if options.quick else options.trials,
        options.candidates,
        options.seed,
        chosen,
        min(options.adaptive_trials, 1) if options.quick else options.adaptive_trials,
        workloads=() if attack else workloads,
        rounds=options.rounds,
        scale=QUICK if options.quick else Scale(),
    )
    results = Results(plan, model or "the default model")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        with TemporaryDirectory(prefix="cloister-sharing-") as folder:
            bars.begin("policies", len(chosen))
            for policy in chosen:
                if attack:
                    _attack(results, policy, model, Path(folder), options.kv_cache_mib, bars.say)
                else:
                    _replay(results, policy, model, Path(folder), options.data, bars.say, save)
                results.seconds = monotonic() - began
                bars.advance(policy)
                save()

    measure_suite(results, measure, options, tables, FIGURES)


_POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def flooded_mib(model: str | None) -> int:
    from cloister.models.source import find_model
    from cloister_bench.spd.deployment import kv_bytes

    return max(1, (kv_bytes(find_model(model).config, FLOODED_TOKENS) or 32 << 20) >> 20)


def _attack(
    results: Results, policy: str, model: str | None, folder: Path, kv_cache_mib: int | None, say: Callable[[str], None]
) -> None:
    from cloister_bench.sharing.adaptive import exposure, extensions
    from cloister_bench.sharing.attack import attacks, reuse
    from cloister_bench.sharing.deployment import Served

    plan = results.plan
    names = [f"attacker-{number}" for number in range(plan.identities + 1)]
    others = [f"other-{number}" for number in range(4)]
    writers = ["writer-0", "writer-1"]  # a probed tenant is read more strictly for a while
    options = ("--kv-cache-mib", str(kv_cache_mib or flooded_mib(model)))
    with Served(policy, model, folder, ["victim", *names, *others, *writers], options) as server:
        server.wait()
        victim, attacker, *identities = (server.caller(name) for name in ("victim", *names))
        say(f"{policy}, what is found")
        results.reused[policy] = reuse(victim, attacker, plan.seed)
        say(f"{policy}, hits before demotion")
        alone, *three = (server.caller(name) for name in others)
        results.exposed[policy] = {
            1: exposure(server.caller(writers[0]), [alone], plan.seed + 1),
            3: exposure(server.caller(writers[1]), three, plan.seed + 2),
        }
        say(f"{policy}, candidates")
        results.guesses[policy] = attacks(victim, attacker, plan.trials, plan.candidates, plan.seed)
        say(f"{policy}, part by part")
        results.extended[policy] = extensions(
            victim,
            identities,
            plan.extensions,
            plan.seed,
            parts=plan.parts,
            candidates=plan.candidates,
            flood=plan.flood,
        )


def _replay(
    results: Results,
    policy: str,
    model: str | None,
    folder: Path,
    data: Path | None,
    say: Callable[[str], None],
    save: Callable[[], None],
) -> None:
    from cloister_bench.sharing.deployment import Served
    from cloister_bench.sharing.replay import replay
    from cloister_bench.sharing.workloads import WORKLOADS

    plan = results.plan
    tenants = [f"tenant-{number}" for number in range(plan.scale.tenants)]
    with Served(policy, model, folder, tenants) as server:
        server.wait()
        for turn in range(plan.rounds):
            for name in plan.workloads:
                say(f"{policy}, {name}, round {turn + 1}")
                workload = WORKLOADS[name](plan.scale, random.Random(f"{plan.seed} {name} {turn}"), data)
                served = asyncio.run(replay(server.address, tenants, server.model, server.level, workload))
                results.served.setdefault(name, {}).setdefault(policy, []).append(served)
                save()
