from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister_bench.spd.results import FIGURES, Results
from cloister_bench.suite.documents import draw_figures
from tests.cloister_bench.spd.fakes import PLAN, document

NAMES = ["spd-users.png", "spd-models.png", "spd-lengths.png", "spd-breakdown.png"]


def test_each_figure_is_a_picture(tmp_path: Path) -> None:
    paths = draw_figures(document(), tmp_path / "deep", FIGURES)
    assert [path.name for path in paths] == NAMES
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000 for path in paths)


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    assert draw_figures(Results(PLAN, "small").document(), tmp_path, FIGURES) == []
    partly = {**document(), "breakdown": {}}
    partly["runs"] = [run for run in partly["runs"] if run["figure"] == 5 and run["level"] != "isolated"]
    assert [path.name for path in draw_figures(partly, tmp_path, FIGURES)] == ["spd-models.png"]


def test_a_run_without_answers_does_not_spoil_a_figure(tmp_path: Path) -> None:
    broken = document()
    for run in broken["runs"]:
        if run["level"] == "isolated":
            run |= {"tokens_per_s": 0.0, "answer_ms": None, "per_token_ms": None}
    assert len(draw_figures(broken, tmp_path, FIGURES)) == 4


def test_a_folder_that_cannot_be_written_is_an_error_to_act_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be written"):
        draw_figures(document(), tmp_path / "file" / "plots", FIGURES)
