import json
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="generation on shares needs the distribution cloister-mpc")

from cloister.errors import SetupError
from cloister_bench.mpc.results import FIGURES, Plan, Results, tables
from cloister_bench.suite.documents import draw_figures, find
from tests.cloister_bench.mpc.fakes import cost, results


def test_a_run_has_the_fields_its_readers_rely_on() -> None:
    run = results().document()["runs"][1]
    expected = ["method", "protocol", "seq", "seconds", "megabytes", "messages", "lan_seconds", "wan_seconds"]
    assert list(run)[: len(expected)] == expected
    assert (run["method"], run["protocol"], run["seq"], run["megabytes"]) == ("full", "aby3", 1024, 300.0)
    assert run["wan_seconds"] > run["lan_seconds"] > run["seconds"]


def test_the_document_is_json_at_any_time() -> None:
    empty = Results(Plan(), "small").document()
    assert empty["runs"] == []
    assert json.loads(json.dumps(results().document()))["runs"][0]["method"] == "full_library"


def test_ratios_stand_against_the_full_cache_that_is_served() -> None:
    document = results().document()
    bytes_less = find(document["targets"], name="megabytes, full over mpcache, T = 1024")
    messages = find(document["targets"], name="messages, full over mpcache, T = 2048")
    latency = find(document["targets"], name="lan_seconds, full over mpcache, T = 1024")
    assert bytes_less and bytes_less["measured"] == 6.0 and bytes_less["met"]
    assert messages and messages["measured"] == 4.0 and messages["met"]
    # 8 + 100/377 + 3.6 against 4 + 16.7/377 + 0.9
    assert latency and latency["measured"] == 2.4 and latency["met"]


def test_what_falls_short_is_missed_and_what_is_not_measured_is_not_met() -> None:
    found = results()
    found.runs = [run for run in found.runs if run["seq"] == 1024 and run["method"] != "mpcache"]
    found.add_run("mpcache", 1024, cost(megabytes=100.0, messages=12_000, seconds=9.0))
    verdicts = found.document()["targets"]
    assert [row["met"] for row in verdicts] == [False] * 6
    assert [row["measured"] is None for row in verdicts] == [False] * 3 + [True] * 3


def test_every_table_has_its_rows() -> None:
    costs, targets = (table.markdown() for table in tables(results().document()))
    assert "| 1,024 | full | 300 | 12,000 |" in costs
    assert "| megabytes, full over mpcache, T = 1024 | ≥ 5 | 6 | met |" in targets
    assert [table.rows for table in tables(Results(Plan(), "small").document())] == [[], []]


def test_the_figure_is_a_picture(tmp_path: Path) -> None:
    (path,) = draw_figures(results().document(), tmp_path / "deep", FIGURES)
    assert path.name == "mpc-lengths.png" and path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 8_000
    assert draw_figures(Results(Plan(), "small").document(), tmp_path, FIGURES) == []


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="plot-dir"):
        draw_figures(results().document(), tmp_path / "file", FIGURES)
