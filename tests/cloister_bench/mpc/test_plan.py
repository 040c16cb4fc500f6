"""What is compared is what its name says."""

from cloister_bench.mpc.plan import VARIANTS


def test_baselines_differ_in_their_cache_alone() -> None:
    tuned = {name for name, variant in VARIANTS.items() if variant.functions == "tuned"}
    assert set(VARIANTS) - tuned == {"full_naive", "full_lean", "mpcache"}
    assert VARIANTS["full"].plan == VARIANTS["full_lean"].plan == VARIANTS["full_naive"].plan
    assert len({variant.plan.budget for variant in VARIANTS.values()}) == 1
