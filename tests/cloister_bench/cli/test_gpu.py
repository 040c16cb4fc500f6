"""`cloister bench gpu` where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.compute.gpu import find
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "find", lambda: find.Found("This machine has no NVIDIA GPU."))


def test_without_a_gpu_there_is_one_clear_error_and_no_file(run: Run, tmp_path: Path) -> None:
    numbers = tmp_path / "gpu.json"
    result = run("bench", "gpu", "--parts", "check,steps", "--json", str(numbers))
    assert result.exit_code == 2 and not numbers.exists()
    assert "This machine has no NVIDIA GPU." in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--parts", "weather"), "no part 'weather'"), (("--minutes", "0"), "0.1"), ((), "--model or --like")],
)
def test_wrong_use_is_said(run: Run, arguments: tuple[str, ...], said: str) -> None:
    result = run("bench", "gpu", *arguments)
    assert result.exit_code in (1, 2) and said in result.stderr and "Traceback" not in result.output


def test_help_has_examples(run: Run) -> None:
    assert "cloister bench gpu --parts check,steps" in run("bench", "gpu", "--help").stdout
