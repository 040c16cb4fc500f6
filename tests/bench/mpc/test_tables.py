from pathlib import Path

import pytest

from cloister.bench.mpc.plan import Plan
from cloister.bench.mpc.results import Results
from cloister.bench.mpc.tables import report, write_report
from cloister.errors import SetupError
from tests.bench.mpc.fakes import cost, results


def test_every_table_has_its_rows() -> None:
    found = results()
    found.add_run("none", "aby3", 2048, cost(megabytes=9e5), extrapolated=True)
    text = report(found.document())
    assert "| 1024 | full | 300 | 12,000 |" in text and "none (extrapolated)" in text
    assert "| communication, full over mpcache, T = 1024 | ≥ 5 | 6 | met |" in text
    assert "+ eviction" in text and "Two parties" in text and "| mpcache | step | dot |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in lines)


def test_nothing_measured_is_nothing_told(tmp_path: Path) -> None:
    assert report(Results(Plan(), "small").document()) == ""
    write_report(results().document(), tmp_path / "deep" / "mpc.md")
    assert (tmp_path / "deep" / "mpc.md").read_text().startswith("# What a token cost on secret shares: small")
    with pytest.raises(SetupError, match="--report"):
        write_report(results().document(), tmp_path)
