"""`cloister bench gpu` where there is no GPU, and what it draws from a measurement of another machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloister.compute.gpu import find
from tests.cli.conftest import Run
from tests.cloister_bench.gpu.fakes import results


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "find", lambda: find.Found("This machine has no NVIDIA GPU."))


def test_without_a_gpu_there_is_one_clear_error_and_no_file(run: Run, tmp_path: Path) -> None:
    numbers = tmp_path / "gpu.json"
    result = run("bench", "gpu", "--json", str(numbers))
    assert result.exit_code == 2 and not numbers.exists()
    assert "This machine has no NVIDIA GPU." in result.stderr and "--from" in result.stderr
    assert "Traceback" not in result.output


def test_a_measurement_is_shown_and_drawn_elsewhere(run: Run, tmp_path: Path) -> None:
    numbers, plots = tmp_path / "gpu.json", tmp_path / "plots"
    document = results().document()
    numbers.write_text(json.dumps({**document, "requests": [], "transformers": [], "breakdown": []}))
    result = run("bench", "gpu", "--from", str(numbers), "--plot-dir", str(plots))
    assert result.exit_code == 0, result.output
    assert len(list(plots.glob("gpu-*.png"))) == 2 and "missed" in result.stdout and "Llama-3-8B" in result.stdout


@pytest.mark.parametrize("text", [None, "{}", "no json", "[]", '{"steps": []}'])
def test_another_file_is_refused(run: Run, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text)
    result = run("bench", "gpu", "--from", str(file))
    assert result.exit_code == 2 and "cloister bench gpu --json" in result.stderr


@pytest.mark.parametrize("arguments", [("--shapes", "GPT-2"), ("--parts", "weather"), ("--minutes", "0")])
def test_wrong_use_is_said(run: Run, arguments: tuple[str, ...]) -> None:
    result = run("bench", "gpu", *arguments)
    assert result.exit_code in (1, 2) and result.stderr and "Traceback" not in result.output


def test_help_has_examples(run: Run) -> None:
    assert "cloister bench gpu --json gpu.json --minutes 7" in run("bench", "gpu", "--help").stdout
