"""An auditor finds whatever was changed in a log after the fact."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cloister.checks import Outcome, Verdict
from cloister.transparency.checkpoint import Checkpoint, ReleaseTrust
from cloister.transparency.log import Log
from cloister.transparency.manifest import Revoked, entry_of, measurement
from cloister.transparency.note import Note, SigningKey
from cloister.transparency.proof import publish, revoke
from cloister.transparency.witness import audit
from tests.transparency.node import NOON, ORIGIN, forked, manifest, release_log, trust, witness_key

KEY = SigningKey.generate(ORIGIN)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return release_log(tmp_path / "log", KEY, [manifest(number) for number in range(6)])


def failed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if check.outcome is Outcome.FAIL}


def test_an_honest_log_passes_and_its_releases_are_listed(log: Log) -> None:
    witness = witness_key("w.example")
    earlier = log.checkpoint
    publish(log, manifest(6), KEY)
    log.attach(witness.sign(log.checkpoint.text, at=NOON))
    verdict = audit(log.folder, trusted=trust(log, witness), earlier=earlier)
    assert verdict.passed and {check.outcome for check in verdict.checks} == {Outcome.PASS}
    assert verdict.claims["releases"] == {measurement(manifest(n)).hex(): f"0.{n}" for n in range(7)}
    assert list(verdict.claims["log_witnesses"]) == ["w.example"]


def test_revocations_are_listed_and_what_was_revoked_does_not_come_again(log: Log) -> None:
    gone = measurement(manifest(2))
    revoke(log, gone, KEY)
    verdict = audit(log.folder, trusted=trust(log))
    assert verdict.passed and verdict.claims["revoked"] == [gone.hex()]
    log.append(entry_of(manifest(2)), KEY)  # `publish` would not
    assert failed(audit(log.folder, trusted=trust(log))) == {"log manifests"}


def test_a_revocation_of_nothing_fails(log: Log) -> None:
    log.append(Revoked(bytes(32)).encoded(), KEY)
    assert failed(audit(log.folder, trusted=trust(log))) == {"log manifests"}


def test_an_empty_log_passes(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    assert audit(log.folder, trusted=trust(log), earlier=log.checkpoint).passed


def test_a_key_that_was_not_compared_is_said_not_to_be(log: Log) -> None:
    verdict = audit(log.folder, trusted=ReleaseTrust())
    assert verdict.passed
    assert next(check.name for check in verdict.checks if check.outcome is Outcome.SKIP) == "log key"


def test_another_key_fails(log: Log) -> None:
    other = SigningKey.generate(ORIGIN).verifier
    assert failed(audit(log.folder, trusted=ReleaseTrust((str(other),)))) == {"log checkpoint"}


def test_missing_witnesses_fail(log: Log) -> None:
    assert failed(audit(log.folder, trusted=trust(log, witness_key("w.example")))) == {"log witnesses"}


def test_a_rollback_and_a_fork_are_found(log: Log, tmp_path: Path) -> None:
    fork = forked(log, tmp_path / "fork", KEY, [manifest(6, branch="secret"), manifest(7)])
    shutil.copytree(log.folder, tmp_path / "backup")
    publish(log, manifest(6), KEY)
    seen = log.checkpoint
    assert failed(audit(tmp_path / "backup", trusted=trust(log), earlier=seen)) == {"log consistency"}
    assert failed(audit(fork.folder, trusted=trust(log), earlier=seen)) == {"log consistency"}
    other = release_log(tmp_path / "other", SigningKey.generate("other.example"), [manifest(1)])
    assert failed(audit(log.folder, trusted=trust(log), earlier=other.checkpoint)) == {"log consistency"}


def test_every_byte_of_every_file_counts(log: Log) -> None:
    files = [path for path in log.folder.rglob("*") if path.is_file() and path.name not in (".lock", "checkpoint")]
    current = [path for path in files if "tile" not in path.parts or path.name == "6"]
    assert len(current) == 9  # six manifests, a tile of hashes, a bundle of entries, the key
    for path in current:
        whole = path.read_bytes()
        for at in {0, len(whole) // 2, len(whole) - 2}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            try:
                assert not audit(log.folder, trusted=trust(log)).passed, (path, at)
            except Exception as error:
                assert type(error).__name__ == "EvidenceInvalid", (path, at)
        path.write_bytes(whole)
    assert audit(log.folder, trusted=trust(log)).passed


def test_missing_files_are_named(log: Log) -> None:
    for pattern, check in (
        ("manifest/*", "log manifests"),
        ("tile/0/*.p/6", "log tiles"),
        ("tile/e*/*/6", "log entries"),
    ):
        path = next(iter(log.folder.glob(pattern)))
        whole = path.read_bytes()
        path.unlink()
        assert check in failed(audit(log.folder, trusted=trust(log))), pattern
        path.write_bytes(whole)


def test_a_checkpoint_over_something_else_than_the_entries_is_found(log: Log) -> None:
    text = Checkpoint(ORIGIN, 6, bytes(32)).text
    (log.folder / "checkpoint").write_text(str(Note(text, (KEY.sign(text),))))
    assert failed(audit(log.folder, trusted=trust(log))) == {"log entries"}


def test_an_entry_that_is_no_release_is_found(log: Log) -> None:
    log.append(b"something else", KEY)
    assert failed(audit(log.folder, trusted=trust(log))) == {"log manifests"}


def test_a_large_log_is_recomputed_tile_by_tile(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    log.append_all([str(number).encode() for number in range(600)], KEY)
    assert failed(audit(log.folder, trusted=trust(log))) == {"log manifests"}
    tile = log.folder / "tile/1/000.p/2"
    tile.write_bytes(tile.read_bytes()[:-1] + b"!")
    assert failed(audit(log.folder, trusted=trust(log))) == {"log manifests", "log tiles"}
