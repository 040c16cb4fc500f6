"""A release's proof: what a client accepts, and that nothing in it can be altered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.checkpoint import Checkpoint, ReleaseTrust
from cloister.transparency.log import Log
from cloister.transparency.manifest import measurement
from cloister.transparency.merkle import EMPTY_ROOT, tree_root
from cloister.transparency.note import SigningKey
from cloister.transparency.proof import (
    ReleaseProof,
    entry_of,
    log_origin,
    prove_release,
    publish,
    read_proof,
    verify_release,
    write_proof,
)
from tests.transparency.node import NOON, ORIGIN, flips, forked, manifest, release_log, trust, witness_key

KEY = SigningKey.generate(ORIGIN)
WITNESSES = (witness_key("w1.example"), witness_key("w2.example"))
MINE = manifest(3)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Seven releases, cosigned by both witnesses."""
    made = release_log(tmp_path / "log", KEY, [manifest(number) for number in range(7)])
    cosign(made)
    return made


def cosign(log: Log) -> None:
    for witness in WITNESSES:
        log.attach(witness.sign(log.checkpoint.text, at=NOON))


def past(log: Log, size: int) -> Checkpoint:
    """The log's checkpoint when it had this size."""
    return Checkpoint(log.origin, size, tree_root(log.tiles.subtree, size))


def altered(proof: ReleaseProof, **changes: Any) -> ReleaseProof:
    return msgspec.structs.replace(proof, **changes)


def failed(verdict: Verdict) -> set[str]:
    assert not verdict.passed
    return {check.name for check in verdict.checks if check.outcome is Outcome.FAIL}


def test_an_honest_proof_passes(log: Log) -> None:
    proof = prove_release(log.folder, MINE, 5)
    verdict = verify_release(proof, measurement(MINE), trusted=trust(log, *WITNESSES), seen=past(log, 5))
    assert verdict.passed
    assert [(check.name, check.outcome) for check in verdict.checks] == [
        ("release manifest", Outcome.PASS),
        ("log checkpoint", Outcome.PASS),
        ("log inclusion", Outcome.PASS),
        ("log witnesses", Outcome.PASS),
        ("log consistency", Outcome.PASS),
    ]
    assert verdict.claims["log_witnesses"] == {key.name: NOON.isoformat() for key in WITNESSES}
    assert (verdict.claims["release_version"], verdict.claims["log_size"]) == ("0.3", 7)
    assert log_origin(proof) == ORIGIN


def test_every_release_and_every_past_can_be_shown(log: Log) -> None:
    for number in range(7):
        for since in range(8):
            proof = prove_release(log.folder, manifest(number), since)
            seen = past(log, since) if since else None
            assert verify_release(proof, measurement(manifest(number)), trusted=trust(log), seen=seen).passed


def test_a_first_visit_and_no_witnesses_are_shown_as_not_checked(log: Log) -> None:
    verdict = verify_release(prove_release(log.folder, MINE), measurement(MINE), trusted=trust(log), seen=None)
    assert verdict.passed
    skipped = {check.name for check in verdict.checks if check.outcome is Outcome.SKIP}
    assert skipped == {"log witnesses", "log consistency"}


def test_every_bit_of_a_proof_counts(log: Log) -> None:
    proof = prove_release(log.folder, MINE, 5)
    seen, trusted = past(log, 5), trust(log, *WITNESSES)
    assert len(proof.inclusion) == 3 and len(proof.consistency) == 4
    wrong: list[ReleaseProof] = []
    for name in ("inclusion", "consistency"):
        path = getattr(proof, name)
        wrong += [
            altered(proof, **{name: (*path[:at], flipped, *path[at + 1 :])})
            for at, step in enumerate(path)
            for flipped in flips(step)
        ]
        wrong += [altered(proof, **{name: changed}) for changed in (path[1:], path[:-1], (*path, path[0]), ())]
    wrong += [altered(proof, manifest=flipped) for flipped in flips(proof.manifest)]
    wrong += [altered(proof, index=proof.index ^ (1 << bit)) for bit in range(63)]
    wrong += [altered(proof, since=proof.since ^ (1 << bit)) for bit in range(63)]
    for name in ("checkpoint", "log_key"):
        for flipped in flips(getattr(proof, name).encode()):
            try:
                wrong.append(altered(proof, **{name: flipped.decode()}))
            except UnicodeDecodeError:
                continue
    assert len(wrong) > 5000
    for each in wrong:
        try:
            verdict = verify_release(each, measurement(MINE), trusted=trusted, seen=seen)
        except EvidenceInvalid:
            continue
        assert not verdict.passed, each
    for flipped in flips(measurement(MINE)):
        assert failed(verify_release(proof, flipped, trusted=trusted, seen=seen)) == {"release manifest"}


def test_a_release_that_is_not_in_the_log_cannot_be_proved(log: Log) -> None:
    other = manifest(3, branch="backdoor")
    with pytest.raises(SetupError, match="not in the log"):
        prove_release(log.folder, other)
    borrowed = altered(prove_release(log.folder, MINE), manifest=other)
    assert failed(verify_release(borrowed, measurement(other), trusted=trust(log), seen=None)) == {"log inclusion"}


def test_a_manifest_of_another_release_is_refused(log: Log) -> None:
    proof = prove_release(log.folder, MINE)
    verdict = verify_release(proof, measurement(manifest(4)), trusted=trust(log), seen=None)
    assert failed(verdict) == {"release manifest"}


def test_a_log_nobody_trusts_is_refused(log: Log, tmp_path: Path) -> None:
    proof = prove_release(log.folder, MINE)
    for trusted in (ReleaseTrust(), trust(release_log(tmp_path / "other", SigningKey.generate("other.example"), []))):
        assert failed(verify_release(proof, measurement(MINE), trusted=trusted, seen=None)) == {"log checkpoint"}
    impostor = SigningKey.generate(ORIGIN)
    fake = prove_release(release_log(tmp_path / "fake", impostor, [MINE]).folder, MINE)
    for each in (fake, altered(fake, log_key=str(log.key)), altered(fake, log_key="")):
        assert failed(verify_release(each, measurement(MINE), trusted=trust(log), seen=None)) == {"log checkpoint"}


def test_a_rolled_back_log_is_caught(log: Log, tmp_path: Path) -> None:
    shutil.copytree(log.folder, tmp_path / "backup")
    publish(log, manifest(7), KEY)
    seen = log.checkpoint
    proof = prove_release(tmp_path / "backup", MINE, seen.size)
    assert proof.since == 0
    for each in (proof, altered(proof, since=8), prove_release(tmp_path / "backup", MINE, 7)):
        verdict = verify_release(each, measurement(MINE), trusted=trust(log), seen=seen)
        assert failed(verdict) == {"log consistency"}
        assert "rolled back" in verdict.broken[0].reason


@pytest.mark.parametrize("hidden", [1, 2, 5])
def test_a_forked_log_is_caught(log: Log, tmp_path: Path, hidden: int) -> None:
    backdoors = [manifest(number, branch="backdoor") for number in range(hidden)]
    fork = forked(log, tmp_path / "fork", KEY, backdoors)
    publish(log, manifest(7), KEY)
    seen = log.checkpoint
    verdict = verify_release(
        prove_release(fork.folder, backdoors[0], seen.size), measurement(backdoors[0]), trusted=trust(log), seen=seen
    )
    assert failed(verdict) == {"log consistency"} and "forked" in verdict.broken[0].reason
    if fork.checkpoint.size == seen.size:  # a fork, wherever the proof begins
        blank = verify_release(
            prove_release(fork.folder, backdoors[0]), measurement(backdoors[0]), trusted=trust(log), seen=seen
        )
        assert "forked" in blank.broken[0].reason


def test_a_fork_without_its_witnesses_is_caught_by_everyone(log: Log, tmp_path: Path) -> None:
    backdoor = manifest(7, branch="backdoor")
    fork = forked(log, tmp_path / "fork", KEY, [backdoor])
    proof = prove_release(fork.folder, backdoor)
    verdict = verify_release(proof, measurement(backdoor), trusted=trust(log, *WITNESSES, quorum=1), seen=None)
    assert failed(verdict) == {"log witnesses"}


def test_a_proof_from_another_past_or_log_is_refused(log: Log, tmp_path: Path) -> None:
    def reason(proof: ReleaseProof, seen: Checkpoint | None) -> str:
        verdict = verify_release(proof, measurement(MINE), trusted=trust(log), seen=seen)
        assert failed(verdict) == {"log consistency"}
        return verdict.broken[0].reason

    assert "begins at 4 entries, not at the 5" in reason(prove_release(log.folder, MINE, 4), past(log, 5))
    assert "begins at 0 entries, not at the 5" in reason(prove_release(log.folder, MINE, 0), past(log, 5))
    assert "none were seen" in reason(prove_release(log.folder, MINE, 4), None)
    other = release_log(tmp_path / "other", SigningKey.generate("other.example"), [MINE])
    assert "another log" in reason(prove_release(log.folder, MINE, 1), other.checkpoint)


def test_the_empty_log_is_the_past_of_any(log: Log) -> None:
    seen = Checkpoint(ORIGIN, 0, EMPTY_ROOT)
    proof = prove_release(log.folder, MINE, 0)
    assert verify_release(proof, measurement(MINE), trusted=trust(log), seen=seen).passed
    extra = altered(proof, consistency=(bytes(32),))
    assert not verify_release(extra, measurement(MINE), trusted=trust(log), seen=seen).passed


def test_witnesses_are_counted_as_asked(log: Log) -> None:
    third = witness_key("w3.example")

    def verdict(*witnesses: SigningKey, quorum: int | None = None) -> Verdict:
        trusted = trust(log, *witnesses, quorum=quorum)
        return verify_release(prove_release(log.folder, MINE), measurement(MINE), trusted=trusted, seen=None)

    assert verdict(*WITNESSES).passed and verdict(*WITNESSES, third, quorum=2).passed
    assert failed(verdict(*WITNESSES, third)) == {"log witnesses"}
    assert failed(verdict(*WITNESSES, third, quorum=3)) == {"log witnesses"}
    same_name = witness_key("w1.example")
    assert failed(verdict(same_name)) == {"log witnesses"}


def test_a_witness_does_not_count_twice(log: Log) -> None:
    first = WITNESSES[0]
    alias = SigningKey("alias.example", first.algorithm, first.seed)
    log.attach(alias.sign(log.checkpoint.text, at=NOON))
    for listed in ((first, alias), (first, alias, witness_key("absent.example"))):
        trusted = trust(log, *listed, quorum=2)
        with pytest.raises(SetupError):
            verify_release(prove_release(log.folder, MINE), measurement(MINE), trusted=trusted, seen=None)


@pytest.mark.parametrize("quorum", [-1, 3])
def test_a_quorum_that_cannot_be_is_refused(log: Log, quorum: int) -> None:
    with pytest.raises(SetupError):
        trust(log, *WITNESSES, quorum=quorum).witness_keys()


def test_a_key_in_the_wrong_place_is_refused(log: Log) -> None:
    with pytest.raises(SetupError):
        ReleaseTrust(logs=(str(WITNESSES[0].verifier),)).log_keys()
    with pytest.raises(SetupError):
        ReleaseTrust(witnesses=(str(log.key),)).witness_keys()
    with pytest.raises(EvidenceInvalid):
        ReleaseTrust(logs=("nonsense",)).log_keys()


def test_a_proof_of_nothing_is_refused(log: Log) -> None:
    empty = ReleaseProof(manifest=MINE)
    assert failed(verify_release(empty, measurement(MINE), trusted=trust(log), seen=None)) == {"log checkpoint"}
    bundle_only = ReleaseProof(manifest=MINE, sigstore=b"{}")
    assert failed(verify_release(bundle_only, measurement(MINE), trusted=trust(log), seen=None)) == {"log checkpoint"}
    assert log_origin(empty) == ""


def test_malformed_parts_are_typed_errors(log: Log) -> None:
    proof = prove_release(log.folder, MINE)
    for wrong in (altered(proof, checkpoint="nonsense"), altered(proof, manifest=b"nonsense")):
        with pytest.raises(EvidenceInvalid):
            verify_release(wrong, measurement(MINE), trusted=trust(log), seen=None)


def test_a_damaged_log_proves_nothing(log: Log) -> None:
    tile = log.folder / "tile/0/000.p/7"
    whole = tile.read_bytes()
    tile.write_bytes(whole[:-32] + bytes(32))
    with pytest.raises(EvidenceInvalid, match="add up"):
        prove_release(log.folder, MINE)


def test_a_proof_travels_as_json(log: Log) -> None:
    proof = prove_release(log.folder, MINE, 5)
    assert read_proof(write_proof(proof)) == proof
    for wrong in (b"", b"{}", b"[]", b"[" * 100_000, write_proof(proof)[:-1], b" " * (1 << 21)):
        with pytest.raises(EvidenceInvalid):
            read_proof(wrong)


def test_an_entry_stays_far_below_its_limit() -> None:
    assert len(entry_of(MINE)) < 256
