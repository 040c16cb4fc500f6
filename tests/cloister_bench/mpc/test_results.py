import json
from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister_bench.mpc.plan import Plan
from cloister_bench.mpc.results import Results, report, write_report
from cloister_bench.suite.documents import find
from tests.cloister_bench.mpc.fakes import cost, results


def test_a_run_has_the_fields_its_readers_rely_on() -> None:
    run = results().document()["runs"][0]
    expected = ["method", "protocol", "seq", "seconds", "megabytes", "messages", "lan_seconds", "wan_seconds"]
    assert list(run)[: len(expected)] == expected
    assert (run["method"], run["protocol"], run["seq"], run["megabytes"]) == ("full", "aby3", 1024, 300.0)
    assert run["wan_seconds"] > run["lan_seconds"] > run["seconds"]


def test_the_document_is_json_at_any_time() -> None:
    empty = Results(Plan(), "small").document()
    assert empty["runs"] == [] == empty["quality"]
    assert json.loads(json.dumps(results().document()))["operators"][0]["operator"] in ("dot", "less")


def test_operators_are_sorted_by_what_they_cost() -> None:
    found = Results(Plan(), "small")
    dear = cost(messages=9_000).operators["dot"]
    cheap = cost(messages=2)
    found.add_operators("mpcache", "step", 256, type(cheap)(cheap.whole, {"cheap": cheap.whole, "dear": dear}))
    assert [row["operator"] for row in found.rows["operators"]] == ["dear", "cheap"]


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
    found.rows["runs"] = [run for run in found.rows["runs"] if run["seq"] == 1024 and run["method"] != "mpcache"]
    found.add_run("mpcache", 1024, cost(megabytes=100.0, messages=12_000, seconds=9.0))
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
        found.rows["quality"].append(
            {"method": method, "budget": 0.1, "task": "novel", "score": perplexity, "full_score": 10.0}
        )
        found.rows["quality"].append(
            {"method": method, "budget": 0.1, "task": "retrieval", "score": accuracy, "full_score": 1.0}
        )
    kept, ahead = (row for row in found.document()["targets"] if row["name"].startswith("quality"))
    assert kept["measured"] == pytest.approx(0.9752, abs=1e-4) and not kept["met"]  # (10 / 10.2 + 0.97) / 2
    assert ahead["measured"] == pytest.approx(1.0756, abs=2e-4) and ahead["met"]


def test_every_table_has_its_rows() -> None:
    found = results()
    text = report(found.document())
    assert "| 1,024 | full | 300 | 12,000 |" in text
    assert "| communication, full over mpcache, T = 1024 | ≥ 5 | 6 | met |" in text
    assert "| mpcache | step | dot |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in lines)


def test_nothing_measured_is_nothing_told(tmp_path: Path) -> None:
    assert report(Results(Plan(), "small").document()) == ""
    write_report(results().document(), tmp_path / "deep" / "mpc.md")
    assert (tmp_path / "deep" / "mpc.md").read_text().startswith("# What a token cost on secret shares: small")
    with pytest.raises(SetupError, match="--report"):
        write_report(results().document(), tmp_path)
