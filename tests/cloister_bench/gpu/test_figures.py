from __future__ import annotations

from pathlib import Path

from cloister_bench.gpu.plan import FULL
from cloister_bench.gpu.results import FIGURES, Results
from cloister_bench.suite.documents import draw_figures
from tests.cloister_bench.gpu.fakes import results


def test_each_figure_is_a_picture(tmp_path: Path) -> None:
    paths = draw_figures(results().document(), tmp_path, FIGURES)
    assert [path.stem for path in paths] == ["gpu-steps", "gpu-shapes", "gpu-requests", "gpu-breakdown"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    assert draw_figures(Results(FULL, "GPU").document(), tmp_path, FIGURES) == []
    some = [row for row in results().rows if row["part"] == "steps" and row["shape"] == "Llama-3-8B"]
    alone = Results(FULL, "GPU", rows=some).document()
    assert [path.stem for path in draw_figures(alone, tmp_path, FIGURES)] == ["gpu-steps"]
