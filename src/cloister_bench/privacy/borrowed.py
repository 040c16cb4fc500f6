"""(c) and (d): attacks that other benches have. Cache timing runs in its smallest form; the obfuscation distinguisher
takes a model for each of thousands of prompts, so its own document is read."""

import json
from collections.abc import Iterator

from cloister.errors import SetupError
from cloister.levels import OBFUSCATED, OPEN
from cloister_bench.privacy.rows import Victim, row
from cloister_bench.sharing.attackers import Rates, add_rates, attack_family, attacked
from cloister_bench.sharing.families import CANDIDATES, read_families
from cloister_bench.sharing.world import Reader, Setting
from cloister_bench.suite.documents import Row, rate_of

POLICIES = {"counted": "shared", "partition": OPEN, "global": "shared"}
BEYOND = ("12 voters", "sent by 20", "marking")  # more accounts than are promised for; one's own account
METHODS = {"exchangeable": "λ = 7, default", "gqs": "λ = 7, GQS (Alg. 1)"}


def cache_timing(victim: Victim) -> Iterator[Row]:
    """The best attacker by an exact clock, beside one against a cache that all tenants share."""
    reader, every = Reader(victim.tokenizer), attacked(Setting())
    settings = {name: every[name] for name in POLICIES}
    rates: Rates = {}
    families = read_families()
    for number, family in enumerate(families, 1):
        victim.say(f"family {number} of {len(families)}")
        add_rates(rates, attack_family(family, reader, settings, victim.plan.trials, victim.plan.seed))
    baseline = _clock(rates["global", "plain"])
    for policy, level in POLICIES.items():
        mine = {name: one for (which, name), one in rates.items() if which == policy and name not in BEYOND}
        best = max(mine, key=lambda name: _clock(mine[name]))
        of, *_, right = mine[best]
        setting = f"{policy}, best of {len(mine)}: {best}"
        rate, unit = rate_of(right, int(of)), f"secrets, one of {CANDIDATES}"
        yield row("cache timing", level, setting, rate, baseline, unit, guessing=1 / CANDIDATES)


def _clock(one: list[float]) -> float:
    return round(one[-1] / one[0], 4)


def distinguisher(victim: Victim) -> Iterator[Row]:
    try:
        document = json.loads(victim.obfuscation.read_bytes())
    except OSError:
        hint = "Run `cloister bench obfuscation --json FILE`, or leave out --attacks distinguisher."
        raise SetupError(f"{victim.obfuscation} cannot be read.", hint=hint) from None
    fakes = document["plan"]["fakes"]
    best: dict[str, Row] = {}
    for one in document["distinguisher"]:
        before = best.get(one["method"])
        if one["group"] == "all" and one["of"] and (before is None or one["share"] > before["share"]):
            best[one["method"]] = one
    baseline = best["gqs"]["share"] if "gqs" in best else None
    for method, setting in METHODS.items():
        if one := best.get(method):
            named, unit = f"{setting}: {one['adversary']}", f"prompts, one of {fakes + 1}"
            yield row("distinguisher", OBFUSCATED, named, one, baseline, unit, guessing=1 / (fakes + 1))
