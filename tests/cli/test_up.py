"""Which parts `cloister up` starts, and what each knows of the others. All of it: tests/chaos/test_cloud.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloister.cli.up import UpOptions, _start
from cloister.files import held
from tests.cli.conftest import Run


def test_several_nodes_need_tokens_to_choose_among_them(run: Run, tmp_path: Path) -> None:
    result = run("up", "--nodes", "3", "--folder", str(tmp_path / "cloud"))
    assert result.exit_code == 2 and "need --issuer" in result.output
    assert not (tmp_path / "cloud").exists()


def test_one_folder_is_one_clouds(run: Run, tmp_path: Path) -> None:
    lock = held(tmp_path / ".lock", "", "")
    result = run("up", "--nodes", "2", "--issuer", "--folder", str(tmp_path))
    os.close(lock)
    assert result.exit_code == 2 and "Another `cloister up` uses" in result.output


@pytest.mark.parametrize(("relay", "issuer"), [(False, False), (True, False), (False, True), (True, True)])
def test_each_part_knows_the_others(tmp_path: Path, relay: bool, issuer: bool) -> None:
    started: dict[str, list[str]] = {}

    class Noted:
        def start(self, name: str, words: Sequence[str], ready: str) -> str:
            started[name] = list(words)
            return f"http://{name}"

        def run(self, words: Sequence[str]) -> None:
            started["run"] = list(words)

    _start(Noted(), UpOptions(relay=relay, issuer=issuer), tmp_path)  # type: ignore[arg-type]
    assert set(started) == {"node", "proxy"} | ({"relay"} if relay else set()) | (
        {"issuer", "run"} if issuer else set()
    )
    assert ("--relay" in started["proxy"]) == relay and ("--issuer" in started["proxy"]) == issuer
    assert ("--cloud" in started["node"]) == issuer
