import json
from pathlib import Path

import pytest

pytest.importorskip("spu", reason="generation on shares needs the distribution cloister-mpc")

from cloister.errors import SetupError
from cloister_bench.mpc.steps import FIGURES, Plan, Results, tables
from cloister_bench.suite.documents import draw_figures
from tests.cloister_bench.mpc.fakes import results

DOCUMENT = Path(__file__).parents[3] / "docs" / "bench" / "mpc.json"


def test_a_run_has_the_fields_its_readers_rely_on() -> None:
    run = results().document()["runs"][1]
    expected = ["method", "seq", "seconds", "megabytes", "messages", "lan_seconds", "wan_seconds"]
    assert list(run)[: len(expected)] == expected
    assert (run["method"], run["seq"], run["megabytes"]) == ("full", 1024, 300.0)
    assert run["wan_seconds"] > run["lan_seconds"] > run["seconds"]


def test_the_document_is_json_at_any_time() -> None:
    empty = Results(Plan(), "small").document()
    assert empty["runs"] == []
    assert json.loads(json.dumps(results().document()))["runs"][0]["method"] == "full_library"


def test_the_table_has_its_rows() -> None:
    [costs] = tables(results().document())
    assert "| 1,024 | full | 300 | 12,000 |" in costs.markdown()
    assert [table.rows for table in tables(Results(Plan(), "small").document())] == [[]]


def test_the_figure_is_a_picture(tmp_path: Path) -> None:
    (path,) = draw_figures(results().document(), tmp_path / "deep", FIGURES)
    assert path.name == "mpc-lengths.png" and path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 8_000
    assert draw_figures(Results(Plan(), "small").document(), tmp_path, FIGURES) == []


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="plot-dir"):
        draw_figures(results().document(), tmp_path / "file", FIGURES)


def test_an_earlier_document_can_still_be_shown(tmp_path: Path) -> None:
    document = json.loads((DOCUMENT).read_text())
    [costs] = tables(document)
    assert len(costs.rows) == len(document["runs"])
    assert len(draw_figures(document, tmp_path, FIGURES)) == 1
