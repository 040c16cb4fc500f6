from pathlib import Path

import pytest

from cloister.bench.plot import plot_runs
from cloister.bench.report import Percentiles, RunReport
from cloister.errors import SetupError

RUNS = [RunReport(users, 10.0 * users, Percentiles(1, 2, 3), Percentiles(4, 5, 6), 0) for users in (1, 8, 32)]
EMPTY = [RunReport(users, 0.0, Percentiles(None, None, None), Percentiles(None, None, None), 4) for users in (1, 8)]


def test_a_plot_of_two_servers_is_written_even_if_one_answered_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "plot.png"
    plot_runs({"ours": RUNS, "theirs": EMPTY}, path, "title")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def test_a_name_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="png"):
        plot_runs({"ours": RUNS}, tmp_path / "plot.nonsense", "title")
