import pytest

from cloister.bench.suite.results import find
from tests.bench.mpc.fakes import cost, results


def test_ratios_stand_against_the_tuned_full_cache() -> None:
    document = results().document()
    bytes_less = find(document["targets"], name="communication, full over mpcache, T = 1024")
    messages = find(document["targets"], name="messages, full over mpcache, T = 2048")
    latency = find(document["targets"], name="latency on a LAN, full over mpcache, T = 1024")
    assert bytes_less and bytes_less["measured"] == 6.0 and bytes_less["met"]
    assert messages and messages["measured"] == 4.0 and messages["met"]
    # 8 + 100/377 + 3.6 against 4 + 16.7/377 + 0.9
    assert latency and latency["measured"] == 2.4 and latency["met"]


def test_what_falls_short_is_missed_and_what_is_not_measured_is_not_met() -> None:
    found = results()
    found.runs = [run for run in found.runs if run["seq"] == 1024 and run["method"] != "mpcache"]
    found.add_run("mpcache", "aby3", 1024, cost(megabytes=100.0, messages=12_000, seconds=9.0))
    verdicts = [
        row for row in found.document()["targets"] if row["baseline"] == "full" and row["seq"] and row["target"]
    ]
    assert [row["met"] for row in verdicts] == [False] * 6
    assert [row["measured"] is None for row in verdicts] == [False] * 3 + [True] * 3


def test_other_baselines_are_told_without_a_target() -> None:
    lean = [row for row in results().document()["targets"] if row["baseline"] == "full_lean"]
    assert lean[0]["measured"] == 4.0 and all(row["target"] is None and row["met"] is None for row in lean)


def test_quality_is_what_is_kept_of_the_full_cache_s() -> None:
    found = results()
    rows = (("mpcache", 10.2, 0.97), ("snapkv", 12.0, 0.98), ("streaming", 20.0, 0.5))
    for method, perplexity, accuracy in rows:
        found.quality.append(
            {"method": method, "budget": 0.1, "task": "novel", "score": perplexity, "full_score": 10.0}
        )
        found.quality.append(
            {"method": method, "budget": 0.1, "task": "retrieval", "score": accuracy, "full_score": 1.0}
        )
    kept, ahead = (row for row in found.document()["targets"] if row["name"].startswith("quality"))
    assert kept["measured"] == pytest.approx(0.9752, abs=1e-4) and not kept["met"]  # (10 / 10.2 + 0.97) / 2
    assert ahead["measured"] == pytest.approx(1.0756, abs=2e-4) and ahead["met"]
