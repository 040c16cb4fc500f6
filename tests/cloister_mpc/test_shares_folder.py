from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from cloister_mpc.client_keeper import SharesFolder

KEEP = """
import sys, time
from pathlib import Path
from cloister_mpc.client_keeper import SharesFolder
folder = SharesFolder(Path(sys.argv[1]))
(folder.path / "share").write_text("x")
print(folder.path, flush=True)
time.sleep(600)
"""


def test_a_folder_is_its_owners_alone_and_goes_with_it(tmp_path: Path) -> None:
    one = SharesFolder(tmp_path / "mpc")
    (one.path / "share").write_text("x")
    assert one.path.stat().st_mode & 0o077 == 0
    other = SharesFolder(tmp_path / "mpc")
    assert one.path.is_dir() and one.path != other.path, "who lives is not swept"
    one.remove()
    assert not one.path.exists() and other.path.is_dir()
    other.remove()


def test_what_a_killed_server_left_is_removed_by_the_next(tmp_path: Path) -> None:
    kept = tmp_path / "aby3"
    kept.mkdir()
    owner = subprocess.Popen([sys.executable, "-c", KEEP, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    left = Path(owner.stdout.readline().strip())
    SharesFolder(tmp_path).remove()
    assert (left / "share").is_file()
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    SharesFolder(tmp_path).remove()
    assert not left.exists() and kept.is_dir(), "what `mpc up` keeps is not swept"


def test_what_a_late_party_writes_after_the_end_is_removed_by_the_next_server(tmp_path: Path) -> None:
    ending = SharesFolder(tmp_path)
    (ending.path / "party-0").mkdir()
    (ending.path / "parties.toml").touch()
    ending.clear()
    assert [each.name for each in ending.path.iterdir()] == ["owner"]
    (ending.path / "party-1").mkdir(parents=True)
    os.close(ending._owner)  # as a server that takes too long to end
    SharesFolder(tmp_path).remove()
    assert not ending.path.exists()
