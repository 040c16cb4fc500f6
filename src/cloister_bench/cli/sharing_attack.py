"""`cloister bench sharing-attack`: what other tenants learn from shared prompts, by policy, family and attacker."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite


class AttackOptions(Output):
    secrets: Path | None = option(
        None, "Families of secrets from this JSON file instead: templates and their slots.", metavar="FILE"
    )
    families: str | None = option(None, "Which families, with commas between.", show_default="all")
    policies: str | None = option(None, "Which policies and switches, with commas between.", show_default="all")
    trials: int = option(1800, "Secrets in each family, offline; 0: none.", ge=0)
    http: int = option(0, "Secrets in all, against a real server of each policy.", ge=0)
    share_epsilon: float = option(1.0, "The node's --share-epsilon.", ge=0.01, le=1e9)
    share_threshold: int = option(12, "The node's --share-threshold.", ge=0, le=100)
    quantise_ttft: int = option(100, "The node's --quantise-ttft.", ge=0, metavar="MS")
    ms_per_token: float = option(1.0, "Offline: what a computed token of a prompt takes.", gt=0)
    data: Path | None = option(None, "Folder with texts of others: chat/, pii/ …", metavar="DIR", show_default="none")
    model: str | None = option(None, "The model to serve, and its tokenizer.", show_default="the default model")
    seed: int = option(1, "What secrets and deployments are drawn from.")
    quick: bool = option(False, "A few secrets of each family: to see that it works.")


@settings_command(AttackOptions)
def bench_sharing_attack(options: AttackOptions) -> None:
    """Attack what tenants share at the level `shared`, as other accounts would.

    A victim sends one of four prompts that differ in a secret; attackers know all four, the code and every setting,
    but not the secret of the noise. One of them sends each candidate once; or up to twelve vote them public, read page
    by page, publish guesses in advance, ask again after a restart, flood the cache, or mark guesses as public.

    Offline, the node's own code runs without a model: what was found is known exactly. `count` is an attacker that
    reads `cached_tokens`, `time` one with the first tokens' grid, `clock` one that sees all that was not computed.
    Every policy is attacked, and `counted` with noise, grid or veto off. --http asks real servers.

    Examples:

      cloister bench sharing-attack --data ../shared/data --json sharing-attack.json --plot-dir plots

      cloister bench sharing-attack --secrets mine.json --trials 400

      cloister bench sharing-attack --trials 0 --http 30 --json over-http.json
    """
    from cloister.models.source import find_model
    from cloister.prompts.tokenizer import Tokenizer
    from cloister_bench.sharing.attack import HTTP_SETTINGS, attack_over_http
    from cloister_bench.sharing.attack_results import FIGURES, Plan, Results, tables
    from cloister_bench.sharing.attackers import add_rates, attack_families, attacked, chunks
    from cloister_bench.sharing.families import free_families, read_families
    from cloister_bench.sharing.world import Reader, Setting

    families = read_families(options.secrets)
    if options.data is not None and options.secrets is None:
        families += free_families(options.data)
    if options.families:
        asked = known_names(options.families, "family", [family.name for family in families])
        families = [family for family in families if family.name in asked]
    grid, speed = options.quantise_ttft, options.ms_per_token
    setting = Setting("counted", options.share_epsilon, options.share_threshold, True, grid, speed)
    every = attacked(setting)
    chosen = known_names(options.policies, "policy", tuple(every)) if options.policies else tuple(every)
    folder = find_model(options.model)
    reader = Reader(Tokenizer(folder))
    trials, http = (min(options.trials, 8), min(options.http, 2)) if options.quick else (options.trials, options.http)
    plan = Plan(tuple(family.name for family in families), trials, http, options.seed, setting)
    results = Results(plan, folder.name)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        if plan.trials:
            bars.begin("offline", len(chunks(families, plan.trials)))
            settings = {name: every[name] for name in chosen}
            for name, rates in attack_families(families, reader, settings, plan.trials, plan.seed):
                add_rates(results.offline.setdefault(name, {}), rates)
                results.seconds = monotonic() - began
                bars.advance(name)
                save()
        if plan.http:
            servers = [name for name in HTTP_SETTINGS if name in chosen]
            bars.begin("servers", len(servers))
            with TemporaryDirectory(prefix="cloister-attack-") as logs:
                for name in servers:
                    where = every[name].setting, options.model, Path(logs)
                    results.http[name] = attack_over_http(*where, families, reader, plan.http, plan.seed)
                    results.seconds = monotonic() - began
                    bars.advance(name)
                    save()

    measure_suite(results, measure, options, tables, FIGURES)
