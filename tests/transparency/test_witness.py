"""A witness signs what continues what it signed before, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cloister.errors import SetupError, VerificationFailed
from cloister.transparency.checkpoint import SignedCheckpoint, read_checkpoint
from cloister.transparency.log import Log
from cloister.transparency.merkle import EMPTY_ROOT
from cloister.transparency.note import Note, SigningKey
from cloister.transparency.proof import publish
from cloister.transparency.witness import STATE_FILE, Witness
from tests.transparency.node import NOON, ORIGIN, flips, forked, manifest, release_log, witness_key

KEY = SigningKey.generate(ORIGIN)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return release_log(tmp_path / "log", KEY, [manifest(number) for number in range(5)])


@pytest.fixture
def witness(tmp_path: Path, log: Log) -> Witness:
    made = Witness(witness_key("w.example"), tmp_path / "state")
    made.meet(log.key)
    return made


def test_a_log_that_grows_is_signed_each_time(log: Log, tmp_path: Path) -> None:
    key = witness_key("w.example")
    for number in range(5, 9):
        witness = Witness(key, tmp_path / "state")  # as if started anew each day
        witness.meet(log.key)
        log.attach(witness.visit(log, at=NOON))
        assert log.signed.cosigned_by(key.verifier) == int(NOON.timestamp())
        assert witness.last(ORIGIN) == log.checkpoint
        publish(log, manifest(number), KEY)


def test_the_same_checkpoint_may_be_signed_again(log: Log, witness: Witness) -> None:
    assert witness.visit(log, at=NOON) == witness.visit(log, at=NOON)


def test_an_empty_log_may_be_signed_and_grow(tmp_path: Path) -> None:
    log = Log.create(tmp_path / "log", KEY)
    assert log.checkpoint.root == EMPTY_ROOT
    witness = Witness(witness_key("w.example"), tmp_path / "state")
    witness.meet(log.key)
    witness.visit(log, at=NOON)
    publish(log, manifest(1), KEY)
    witness.visit(log, at=NOON)
    assert witness.last(ORIGIN) == log.checkpoint


@pytest.mark.parametrize("shown", [1, 2, 3])
def test_a_fork_is_refused_and_nothing_is_forgotten(log: Log, witness: Witness, tmp_path: Path, shown: int) -> None:
    secret = [manifest(number, branch="secret") for number in range(5, 5 + shown)]
    fork = forked(log, tmp_path / "fork", KEY, secret)
    for number in (5, 6):
        publish(log, manifest(number), KEY)
    witness.visit(log, at=NOON)
    signed = witness.last(ORIGIN)
    assert signed == log.checkpoint and fork.checkpoint.size - signed.size == shown - 2
    with pytest.raises(VerificationFailed) as refusal:
        witness.visit(fork, at=NOON)
    assert refusal.value.checks == ("log consistency",)
    assert witness.last(ORIGIN) == signed
    witness.visit(log, at=NOON)


def test_a_rollback_is_refused(log: Log, witness: Witness, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(log.folder, backup)
    publish(log, manifest(5), KEY)
    witness.visit(log, at=NOON)
    with pytest.raises(VerificationFailed) as refusal:
        witness.visit(Log.open(backup), at=NOON)
    assert refusal.value.checks == ("log consistency",)


def test_every_bit_of_the_consistency_proof_counts(log: Log, witness: Witness) -> None:
    witness.visit(log, at=NOON)
    for number in (5, 6):
        publish(log, manifest(number), KEY)
    proof = log.consistency(5)
    for at, step in enumerate(proof):
        for wrong in flips(step):
            with pytest.raises(VerificationFailed):
                witness.cosign(log.signed, (*proof[:at], wrong, *proof[at + 1 :]), at=NOON)
    witness.cosign(log.signed, proof, at=NOON)


def test_a_log_it_does_not_know_or_that_did_not_sign_is_refused(log: Log, witness: Witness, tmp_path: Path) -> None:
    stranger = Witness(witness_key("v.example"), tmp_path / "another state")
    with pytest.raises(VerificationFailed) as refusal:
        stranger.visit(log, at=NOON)
    assert refusal.value.checks == ("log checkpoint",)
    impostor = SigningKey.generate(ORIGIN)
    note = Note(log.checkpoint.text, (impostor.sign(log.checkpoint.text),))
    with pytest.raises(VerificationFailed) as refusal:
        witness.cosign(SignedCheckpoint(log.checkpoint, note), (), at=NOON)
    assert refusal.value.checks == ("log checkpoint",)
    with pytest.raises(VerificationFailed):
        witness.meet(impostor.verifier)


def test_a_witness_whose_memory_is_damaged_signs_nothing(log: Log, witness: Witness, tmp_path: Path) -> None:
    witness.visit(log, at=NOON)
    (tmp_path / "state" / STATE_FILE).write_text("{")
    with pytest.raises(SetupError):
        witness.visit(log, at=NOON)


def test_what_it_signed_is_remembered_before_the_signature_leaves(
    log: Log, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered: list[bool] = []
    real = SigningKey.sign

    def sign(self: SigningKey, text: str, **when: object) -> object:
        remembered.append(witness.last(ORIGIN) == log.checkpoint)
        return real(self, text, **when)  # type: ignore[arg-type]

    monkeypatch.setattr(SigningKey, "sign", sign)
    witness.visit(log, at=NOON)
    assert remembered == [True]


def test_it_keeps_what_the_log_signed_as_proof(log: Log, witness: Witness, tmp_path: Path) -> None:
    witness.visit(log, at=NOON)
    kept = json.loads((tmp_path / "state" / STATE_FILE).read_text())["checkpoints"][ORIGIN]
    assert read_checkpoint(kept).signed_by(KEY.verifier)
