"""The log in a folder: what it promises, also when the machine dies in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import write_whole
from cloister.transparency import log as log_module
from cloister.transparency import merkle as tiles_module
from cloister.transparency.checkpoint import ReleaseTrust, read_checkpoint
from cloister.transparency.log import Log
from cloister.transparency.manifest import Published, Revoked, entry_of, measurement, read_entry
from cloister.transparency.merkle import EMPTY_ROOT, leaf_hash, verify_consistency, verify_inclusion
from cloister.transparency.note import SigningKey
from cloister.transparency.proof import find_release, publish, published_manifest, revoke
from cloister.transparency.witness import audit
from tests.transparency.node import NOON, ORIGIN, manifest, release_log, witness_key

KEY = SigningKey.generate(ORIGIN)


def test_a_new_log_is_empty_and_signed(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    assert (log.origin, log.checkpoint.size, log.checkpoint.root) == (ORIGIN, 0, EMPTY_ROOT)
    signed = read_checkpoint((tmp_path / "log" / "checkpoint").read_text())
    assert signed.signed_by(KEY.verifier)
    assert (tmp_path / "log" / "vkey").read_text() == f"{KEY.verifier}\n"


def test_nothing_in_the_folder_is_secret_and_all_can_be_served(tmp_path: Path) -> None:
    log = release_log(tmp_path / "log", KEY, [manifest(1), manifest(2)])
    served = [path for path in log.folder.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(served) > 5
    for path in served:
        assert path.stat().st_mode & 0o444 == 0o444
        assert KEY.seed not in path.read_bytes() and KEY.private_text()[-20:].encode() not in path.read_bytes()


def test_every_entry_and_every_past_can_be_proved(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    past = [log.checkpoint]
    for number in range(9):
        assert log.append(f"entry {number}".encode(), KEY) == number
        past.append(log.checkpoint)
    now = Log.open(log.folder)
    assert now.checkpoint == log.checkpoint
    for number in range(9):
        leaf = leaf_hash(f"entry {number}".encode())
        assert verify_inclusion(number, 9, leaf, now.inclusion(number), now.checkpoint.root)
        assert now.tiles.find(f"entry {number}".encode()) == number
    for earlier in past[1:]:
        proof = now.consistency(earlier.size)
        assert verify_consistency(earlier.size, 9, earlier.root, now.checkpoint.root, proof)
    assert now.consistency(0) == ()


def test_what_the_log_has_not_cannot_be_proved(tmp_path: Path) -> None:
    log = release_log(tmp_path / "log", KEY, [manifest(1)])
    with pytest.raises(EvidenceInvalid):
        log.inclusion(1)
    with pytest.raises(EvidenceInvalid):
        log.consistency(2)


def test_only_its_own_key_appends(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    with pytest.raises(SetupError):
        log.append(b"entry", SigningKey.generate(ORIGIN))
    assert Log.open(log.folder).checkpoint.size == 0


def test_a_log_is_not_made_over_another(tmp_path: Path) -> None:
    log = release_log(tmp_path / "log", KEY, [manifest(1)])
    with pytest.raises(SetupError, match="already"):
        Log.create(log.folder, KEY)
    (log.folder / "checkpoint").unlink()
    with pytest.raises(SetupError, match="already"):
        Log.create(log.folder, KEY)


def test_a_folder_without_a_log_says_so(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no log"):
        Log.open(tmp_path)


@pytest.mark.parametrize("file", ["checkpoint", "vkey"])
@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"nonsense\n", b"x" * 10_000_000])
def test_a_damaged_log_is_not_opened(tmp_path: Path, file: str, damage: bytes) -> None:
    log = release_log(tmp_path / "log", KEY, [manifest(1)])
    (log.folder / file).write_bytes(damage)
    with pytest.raises(EvidenceInvalid):
        Log.open(log.folder)


def test_a_log_whose_tiles_were_changed_signs_nothing_more(tmp_path: Path) -> None:
    log = release_log(tmp_path / "log", KEY, [manifest(1), manifest(2)])
    tile = log.folder / "tile/0/000.p/2"
    tile.write_bytes(leaf_hash(b"another") + tile.read_bytes()[32:])
    before = (log.folder / "checkpoint").read_bytes()
    with pytest.raises(EvidenceInvalid, match="add up"):
        log.append(b"entry", KEY)
    assert (log.folder / "checkpoint").read_bytes() == before


class PowerCut(BaseException):
    """The machine is off."""


def power_cut_after(writes: int) -> Callable[..., None]:
    """Writes files this many times, and no more."""
    left = writes

    def write(path: Path, data: bytes, *, mode: int = 0o644, fresh: bool = False) -> None:
        nonlocal left
        if left == 0:
            raise PowerCut
        left -= 1
        write_whole(path, data, mode=mode, fresh=fresh)

    return write


def test_a_crash_at_any_write_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = release_log(tmp_path / "log", KEY, [manifest(number) for number in range(3)])
    log.append_all([entry_of(manifest(number)) for number in range(3, 255)], KEY)
    before = log.checkpoint
    survived = 0
    while True:
        with monkeypatch.context() as patched:
            cut = power_cut_after(survived)
            patched.setattr(tiles_module, "write_whole", cut)
            patched.setattr(log_module, "write_whole", cut)
            try:
                Log.open(log.folder).append_all([f"lost {survived}".encode()] * 3, KEY)
                break
            except PowerCut:
                survived += 1
        assert Log.open(log.folder).checkpoint == before
        assert Log.open(log.folder).tiles.root() == before.root
    # Three tiles of entries and hashes, one of the level above, the checkpoint last.
    assert survived >= 5
    after = Log.open(log.folder)
    assert after.checkpoint.size == 258 and after.tiles.root() == after.checkpoint.root
    assert list(after.tiles.entries())[255:] == [f"lost {survived}".encode()] * 3
    proof = after.consistency(before.size)
    assert verify_consistency(before.size, 258, before.root, after.checkpoint.root, proof)


APPENDING = """
import sys
from pathlib import Path
from cloister.transparency.note import SigningKey
from cloister.transparency.log import Log
from cloister.transparency.proof import publish
from tests.transparency.node import manifest
key = SigningKey.parse(sys.stdin.readline().strip())
log = Log.open(Path(sys.argv[1]))
for number in range(10_000):
    publish(log, manifest(number, branch=sys.argv[2]), key)
    print(log.checkpoint.size, flush=True)
"""


@pytest.mark.parametrize("after", [1, 5, 12])
def test_a_killed_writer_leaves_a_whole_log(tmp_path: Path, after: int) -> None:
    log = Log.create(tmp_path / "log", KEY)
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDING, str(log.folder), str(after)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin and process.stdout
    process.stdin.write(KEY.private_text() + "\n")
    process.stdin.flush()
    told = 0
    while told < after:
        told = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert Log.open(log.folder).checkpoint.size >= told  # what was told to be in the log is in it
    publish(Log.open(log.folder), manifest(1, branch="afterwards"), KEY)
    assert audit(log.folder, trusted=ReleaseTrust((str(KEY.verifier),))).passed


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    folder = Log.create(tmp_path / "log", KEY).folder

    def write(name: str) -> None:
        log = Log.open(folder)
        for number in range(10):
            publish(log, manifest(number, branch=name), KEY)

    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    log = Log.open(folder)
    assert log.checkpoint.size == 30
    assert all(
        log.tiles.find(entry_of(manifest(number, branch=name))) is not None for number in range(10) for name in "abc"
    )
    assert audit(folder, trusted=ReleaseTrust((str(KEY.verifier),))).passed


def test_a_read_only_folder_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.create(tmp_path / "log", KEY)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(tiles_module, "write_whole", refuse)
    with pytest.raises(SetupError, match="cannot be written: Permission denied"):
        log.append(b"entry", KEY)


def test_a_cosignature_is_attached_once_and_renewed(tmp_path: Path) -> None:
    log = release_log(tmp_path / "log", KEY, [manifest(1)])
    witness, other = witness_key("w.example"), witness_key("v.example")
    for key in (witness, other, witness):
        log.attach(key.sign(log.checkpoint.text, at=NOON))
    signed = Log.open(log.folder).signed
    assert [line.name for line in signed.note.signatures] == [ORIGIN, "v.example", "w.example"]
    assert signed.cosigned_by(witness.verifier) and signed.cosigned_by(other.verifier)
    with pytest.raises(EvidenceInvalid):
        log.attach(KEY.sign(log.checkpoint.text))
    publish(log, manifest(2), KEY)
    assert [line.name for line in log.signed.note.signatures] == [ORIGIN]


def test_a_release_is_published_once(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    assert publish(log, manifest(1), KEY) == (0, True)
    assert publish(log, manifest(2), KEY) == (1, True)
    assert publish(log, manifest(1), KEY) == (0, False)
    said = read_entry(log.tiles.entry(1))
    assert said == Published("0.2", measurement(manifest(2))) and published_manifest(log, said.measurement) == manifest(
        2
    )
    with pytest.raises(EvidenceInvalid):
        publish(log, manifest(3) + b" ", KEY)
    assert log.checkpoint.size == 2


def test_a_last_day_is_given_and_changed_by_a_new_entry(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    assert publish(log, manifest(1), KEY, expires=date(2026, 3, 1)) == (0, True)
    assert publish(log, manifest(1), KEY) == publish(log, manifest(1), KEY, expires=date(2026, 3, 1)) == (0, False)
    assert publish(log, manifest(1), KEY, expires=date(2026, 9, 1)) == (1, True)
    assert find_release(log, measurement(manifest(1))) == (1, read_entry(log.tiles.entry(1)))


def test_what_was_revoked_stays_revoked(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    publish(log, manifest(1), KEY)
    measured = measurement(manifest(1))
    assert revoke(log, measured, KEY) == (1, True) and revoke(log, measured, KEY) == (1, False)
    assert find_release(log, measured) is None and read_entry(log.tiles.entry(1)) == Revoked(measured)
    with pytest.raises(SetupError, match="revoked"):
        publish(log, manifest(1), KEY, expires=date(2026, 3, 1))
    with pytest.raises(SetupError, match="no release"):
        revoke(log, bytes(32), KEY)
    assert log.checkpoint.size == 2


LAST_DAY = entry_of(manifest(1), date(2026, 3, 1))


@pytest.mark.parametrize(
    "entry",
    [
        *(b"", b"other\n", entry_of(manifest(1))[:-1], entry_of(manifest(1)) + b"\n", entry_of(manifest(1)).upper()),
        *(LAST_DAY[:-1], LAST_DAY + b"\n", LAST_DAY.replace(b"03-01", b"02-30"), LAST_DAY.replace(b"2026", b"26")),
        *(LAST_DAY.replace(b"2026", "٢٠٢٦".encode()), Revoked(bytes(32)).encoded()[:-1], Revoked(bytes(31)).encoded()),
    ],
)
def test_an_entry_that_is_none_is_not_taken_for_one(entry: bytes) -> None:
    assert read_entry(entry) is None


@pytest.mark.parametrize(
    "entry", [Published("1.2", bytes(32)), Published("1.2", bytes(32), date(2027, 1, 31)), Revoked(bytes(range(32)))]
)
def test_an_entry_is_read_as_it_was_written(entry: Published | Revoked) -> None:
    assert read_entry(entry.encoded()) == entry
