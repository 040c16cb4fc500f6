from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister_bench.mpc.plan import Plan
from cloister_bench.mpc.results import FIGURES, Results
from cloister_bench.suite.documents import draw_figures
from tests.cloister_bench.mpc.fakes import results

NAMES = ["mpc-lengths.png", "mpc-operators.png"]


def test_each_figure_is_a_picture(tmp_path: Path) -> None:
    paths = draw_figures(results().document(), tmp_path / "deep", FIGURES)
    assert [path.name for path in paths] == NAMES
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 8_000 for path in paths)


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    assert draw_figures(Results(Plan(), "small").document(), tmp_path, FIGURES) == []
    partly = {**results().document(), "operators": []}
    assert [path.name for path in draw_figures(partly, tmp_path, FIGURES)] == ["mpc-lengths.png"]


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="plot-dir"):
        draw_figures(results().document(), tmp_path / "file", FIGURES)
