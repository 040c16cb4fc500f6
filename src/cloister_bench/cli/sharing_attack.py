"""`cloister bench sharing-attack`: what other tenants learn from shared prompts, by policy, family and attacker."""

from collections.abc import Callable
from time import monotonic

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, measure_suite


class AttackOptions(Output):
    trials: int = option(1800, "Secrets in each family.", ge=1)
    model: str | None = option(None, "Its tokenizer is used.", show_default="the default model")
    seed: int = option(1, "What secrets and deployments are drawn from.")
    quick: bool = option(False, "Four secrets of each family: to see that it works.")


@settings_command(AttackOptions)
def bench_sharing_attack(options: AttackOptions) -> None:
    """Attack what tenants share at the level `shared`, as other accounts would.

    A victim sends one of four prompts that differ in a secret; attackers know all four, the code and every setting,
    but not the secret of the noise. One of them sends each candidate once; or up to twelve vote them public, read page
    by page, publish guesses in advance, ask again after a restart, flood the cache, or mark guesses as public.

    The node's own code runs without a model: what was found is known exactly. `count` is an attacker that reads
    `cached_tokens`, `time` one with the first tokens' grid, `clock` one that sees all that was not computed. Every
    policy is attacked, and `counted` with noise, grid or veto off.

    Example:

      cloister bench sharing-attack --json sharing-attack.json --plot-dir plots
    """
    from cloister.models.source import find_model
    from cloister.prompts.tokenizer import Tokenizer
    from cloister_bench.sharing.attack_results import FIGURES, Plan, Results, tables
    from cloister_bench.sharing.attackers import attack_families, attacked
    from cloister_bench.sharing.families import read_families
    from cloister_bench.sharing.world import Reader, Setting

    families, setting, folder = read_families(), Setting(), find_model(options.model)
    trials = min(options.trials, 4) if options.quick else options.trials
    plan = Plan(tuple(family.name for family in families), trials, options.seed, setting)
    results, reader = Results(plan, folder.name), Reader(Tokenizer(folder))

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        bars.begin("families", len(families))
        for name, rates in attack_families(families, reader, attacked(setting), trials, plan.seed):
            results.offline[name] = rates
            results.seconds = monotonic() - began
            bars.advance(name)
            save()

    measure_suite(results, measure, options, tables, FIGURES)
