"""Attempts of root on a node's machine: each passes at small processes without flaws, and finds its flaw."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

import pytest

from cloister.addresses import HttpAddress
from cloister.attest.policy import Policy
from cloister.audit import doors, machine, remains
from cloister.audit.finding import Outcome
from cloister.audit.ledger import Attempt
from cloister.audit.target import Reply, Target
from cloister.usage import UsageFile

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into other processes")
SCRIPT = Path(__file__).parent / "small_family.py"


class Family(Target):
    """Its requests go to the small processes."""

    process: subprocess.Popen[bytes]
    turn = Lock()
    levels = ("partitioned",)  # type: ignore[assignment]

    def complete(self, prompt: str, level: str, **_: object) -> Reply:  # type: ignore[override]
        if level not in self.levels:
            return Reply(400, b"", None)
        with self.turn:
            return self._keep(prompt)

    def _keep(self, prompt: str) -> Reply:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(prompt.encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"taken\n"
        return Reply(200, b"", None)

    def ask(self, *_: object, **__: object) -> Reply:  # type: ignore[override]
        return Reply(204, b"", None)


Started = Callable[..., Family]


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setattr(machine, "FORGOTTEN_AFTER_S", 0.0)
    (disk := tmp_path / "disk").mkdir()
    monkeypatch.setattr(remains, "disks", lambda pid: [disk])
    monkeypatch.setattr(remains, "SWAPS", tmp_path / "swaps")
    monkeypatch.setattr(remains, "JOURNAL", ("sh", "-c", "cat $0", str(tmp_path / "journal")))
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def start(*flaws: str, **environment: str) -> Family:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *flaws],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], "TO_WRITE": str(disk / "file"), **environment},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout and process.stdout.readline() == b"up\n"
            address = HttpAddress.parse(f"http://127.0.0.1:{listening.getsockname()[1]}")
            target = Family(address, "", Policy(), pid=process.pid)
            target.process = process
            return target

        yield start


ATTEMPTS = (
    *((machine.retention, flaw) for flaw in ("keeps", "logs", "removes", "does not receive", "leaves in a pipe")),
    (machine.offloading, "writes"),
    (machine.network, "network"),
    (machine.writable_code, "code"),
    (doors.sockets, "listens"),
    (doors.sockets, "answers packets"),
    (doors.sockets, "listens locally"),
    (doors.signals, "catches"),
    (doors.dumps, "dumps"),
)


ALONE = (machine.other_users, machine.environment, machine.retention_on_shares)


@pytest.mark.parametrize(("attempt", "flaw"), ATTEMPTS, ids=lambda each: getattr(each, "__name__", each))
def test_a_flaw_is_found_and_only_that(family: Started, attempt: Attempt, flaw: str) -> None:
    good = attempt(family())
    assert good.outcome is (Outcome.OFF if attempt is machine.offloading else Outcome.PASS), good.reason
    assert attempt(family(flaw)).outcome is Outcome.FAIL


def test_memory_that_a_user_reads_is_found(family: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.other_users(family()).outcome is Outcome.PASS
    monkeypatch.setattr(machine, "ANOTHER_USER", 0)
    assert machine.other_users(family()).outcome is Outcome.FAIL


def test_a_variable_that_changes_what_runs_is_found(family: Started) -> None:
    assert machine.environment(family()).outcome is Outcome.PASS
    assert machine.environment(family(LD_PRELOAD="")).outcome is Outcome.FAIL


def test_from_another_machine_nothing_of_it_is_a_pass(family: Started) -> None:
    target = family()
    target.pid = None
    assert {attempt(target).outcome for attempt, _ in ATTEMPTS} == {Outcome.NOT_TRIED}


def test_parties_are_searched_where_they_run(family: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PARTY", "cl-vault")
    good, bad, away = family(), family("keeps"), family()
    assert machine.retention_on_shares(good).outcome is Outcome.OFF
    for target in (good, bad, away):
        monkeypatch.setattr(target, "levels", ("partitioned", "mpc"))
    assert machine.retention_on_shares(good).outcome is Outcome.PASS
    assert machine.retention_on_shares(bad).outcome is Outcome.FAIL
    monkeypatch.setattr(machine, "PARTY", "cl-party")
    assert machine.retention_on_shares(away).outcome is Outcome.NOT_TRIED


def test_a_usage_file_is_searched_wherever_it_lies(tmp_path: Path) -> None:
    """A node holds it open, so it needs no place in KEPT_IN."""
    file = UsageFile(tmp_path / "usage.sqlite")
    assert str(file.path) in {name for _, name in machine._written(os.getpid())}
    file.close()
    assert str(file.path) not in {name for _, name in machine._written(os.getpid())}


@pytest.mark.parametrize("place", ["journal", "swap"])
def test_what_other_programs_wrote_is_found(family: Started, tmp_path: Path, place: str) -> None:
    """The journal, and a swap file with a page of before."""
    (tmp_path / "swaps").write_text(f"Filename Type Size Used Priority\n{tmp_path / 'swap'} file 8 8 -2\n")
    target = family()
    complete = target.complete

    def kept_elsewhere(prompt: str, level: str, **fields: object) -> Reply:
        (tmp_path / place).write_bytes(bytes(remains.PIECE - 40) * (place == "swap") + prompt.encode())
        return complete(prompt, level, **fields)

    target.complete = kept_elsewhere  # type: ignore[method-assign]
    found = machine.retention(target)
    assert found.outcome is Outcome.FAIL and place in found.reason


def test_a_file_is_searched_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(remains.PIECE - 3) + b"needle" + bytes(remains.PIECE))
    assert sum(b"needle" in bytes(piece) for piece in remains.pieces(file)) >= 1
    assert sum(len(piece) for piece in remains.pieces(file)) >= file.stat().st_size


def test_all_disks_are_searched_and_no_file_twice() -> None:
    places = [str(place) for place in remains.disks(os.getpid())]
    assert f"/proc/{os.getpid()}/root" in places and not [each for each in places if each.endswith("/root/proc")]
