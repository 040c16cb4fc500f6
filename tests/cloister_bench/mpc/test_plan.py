"""What is compared is what its name says: each step of the ablation changes one thing."""

from itertools import pairwise

from msgspec.structs import asdict

from cloister_bench.mpc.plan import PAPER, VARIANTS, ablation, hierarchies


def test_baselines_differ_in_their_cache_alone() -> None:
    tuned = {name for name, variant in VARIANTS.items() if variant.functions == "tuned"}
    assert set(VARIANTS) - tuned == {"full_naive", "full_lean", "mpcache"}
    assert VARIANTS["full"].plan == VARIANTS["full_lean"].plan
    assert len({variant.plan.budget for variant in VARIANTS.values()}) == 1
    published = ("longcache", "infllm", "h2o", "snapkv", "tova", "mpcache_paper")
    assert all(VARIANTS[name].plan.ranking == "top_k" and VARIANTS[name].plan.gather == "keys" for name in published)


def test_each_step_of_the_ablation_adds_one_thing() -> None:
    steps = ablation()[1:]
    changes = []
    for before, after in pairwise(steps):
        plans = asdict(before.plan), asdict(after.plan)
        differing = {name for name in plans[0] if plans[0][name] != plans[1][name]}
        changes.append(differing | ({"functions"} if before.functions != after.functions else set()))
    assert changes[:7] == [
        {"static_keep"},
        {"clusters", "ratios"},
        {"similarity"},
        {"shared_layers"},
        {"ranking"},
        {"gather"},
        {"functions"},
    ]
    assert steps[4].plan == PAPER and steps[-1].plan == VARIANTS["mpcache"].plan


def test_hierarchies_are_those_of_the_paper() -> None:
    assert [variant.name for variant in hierarchies()][:2] == ["s32(0.9) s16", "s32(0.7) s16"]
    assert {variant.plan.clusters for variant in hierarchies()} == {(32, 16), (64, 16)}
