"""The bench's MPS is a node's: there while a block runs, found by its environment, and gone afterwards. The daemon is a
script."""

import os
from pathlib import Path

import pytest

from cloister.controller.mps import DAEMON
from cloister_bench.gpu.mps import FOLDER, mps, pipe_folder
from tests.controller.test_mps import DAEMON as SCRIPT


def on_path(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / DAEMON).write_text(script)
    (folder / DAEMON).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_it_runs_while_the_block_does_and_processes_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, SCRIPT, monkeypatch)
    with mps() as there:
        folder = Path(pipe_folder())
        assert there and (folder / "control").exists()
        if not (child := os.fork()):  # as sessions are forked
            os._exit(0 if pipe_folder() == str(folder) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pipe_folder() == "" and not folder.exists()


def test_a_daemon_that_ends_at_once_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, "#!/bin/sh\nexit 1\n", monkeypatch)
    monkeypatch.delenv(FOLDER, raising=False)
    with mps() as there:
        assert not there
    assert FOLDER not in os.environ
