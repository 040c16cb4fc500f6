"""A release's proof: what a client accepts, and that nothing in it can be altered."""

from __future__ import annotations

import shutil
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.checkpoint import Checkpoint, ReleaseTrust
from cloister.transparency.log import Log
from cloister.transparency.manifest import entry_of, measurement
from cloister.transparency.merkle import EMPTY_ROOT, tree_root
from cloister.transparency.note import SigningKey
from cloister.transparency.proof import (
    ReleaseProof,
    log_origin,
    order_of,
    prove_release,
    publish,
    read_proof,
    revoke,
    verify_release,
    write_proof,
)
from tests.transparency.node import NOON, ORIGIN, flips, forked, manifest, release_log, trust, witness_key

KEY = SigningKey.generate(ORIGIN)
WITNESSES = (witness_key("w1.example"), witness_key("w2.example"))
MINE = manifest(3)
checked = partial(verify_release, at=NOON)


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
    verdict = checked(proof, measurement(MINE), trusted=trust(log, *WITNESSES), seen=past(log, 5))
    assert verdict.passed
    assert [(check.name, check.outcome) for check in verdict.checks] == [
        ("release manifest", Outcome.PASS),
        ("release version", Outcome.SKIP),
        ("log checkpoint", Outcome.PASS),
        ("log inclusion", Outcome.PASS),
        ("log revocation", Outcome.PASS),
        ("release expiry", Outcome.SKIP),
        ("log witnesses", Outcome.PASS),
        ("log freshness", Outcome.PASS),
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
            assert checked(proof, measurement(manifest(number)), trusted=trust(log), seen=seen).passed


def test_a_first_visit_and_no_witnesses_are_shown_as_not_checked(log: Log) -> None:
    verdict = checked(prove_release(log.folder, MINE), measurement(MINE), trusted=trust(log), seen=None)
    assert verdict.passed
    skipped = {check.name for check in verdict.checks if check.outcome is Outcome.SKIP}
    assert skipped == {"release version", "release expiry", "log witnesses", "log freshness", "log consistency"}


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.release)])
def test_every_bit_of_a_proof_counts(log: Log, every: int) -> None:
    """All of them for a release, else a bit of each byte: another one from byte to byte."""
    proof = prove_release(log.folder, MINE, 5)
    seen, trusted = past(log, 5), trust(log, *WITNESSES)
    assert len(proof.inclusion) == 3 and len(proof.consistency) == 4
    wrong: list[ReleaseProof] = []

    def flipped_in(data: bytes) -> list[bytes]:
        return [one for place, one in enumerate(flips(data)) if every == 1 or place % 8 == place // 8 % 8]

    for name in ("inclusion", "consistency"):
        path = getattr(proof, name)
        wrong += [
            altered(proof, **{name: (*path[:at], flipped, *path[at + 1 :])})
            for at, step in enumerate(path)
            for flipped in flipped_in(step)
        ]
        wrong += [altered(proof, **{name: changed}) for changed in (path[1:], path[:-1], (*path, path[0]), ())]
    later = proof.later
    wrong += [
        altered(proof, later=(*later[:at], flipped, *later[at + 1 :]))
        for at, entry in enumerate(later)
        for flipped in flipped_in(entry)
    ]
    wrong += [altered(proof, later=changed) for changed in (later[1:], later[:-1], (*later, later[0]), ())]
    wrong += [altered(proof, expires=date(2026, 9, 1))]
    wrong += [altered(proof, manifest=flipped) for flipped in flipped_in(proof.manifest)]
    wrong += [altered(proof, index=proof.index ^ (1 << bit)) for bit in range(63)]
    wrong += [altered(proof, since=proof.since ^ (1 << bit)) for bit in range(63)]
    for name in ("checkpoint", "log_key"):
        for flipped in flipped_in(getattr(proof, name).encode()):
            try:
                wrong.append(altered(proof, **{name: flipped.decode()}))
            except UnicodeDecodeError:
                continue
    assert len(wrong) > 5000 // every
    for each in wrong:
        try:
            verdict = checked(each, measurement(MINE), trusted=trusted, seen=seen)
        except EvidenceInvalid:
            continue
        assert not verdict.passed, each
    for flipped in flipped_in(measurement(MINE)):
        assert failed(checked(proof, flipped, trusted=trusted, seen=seen)) == {"release manifest"}


def test_a_release_that_is_not_in_the_log_cannot_be_proved(log: Log) -> None:
    other = manifest(3, branch="backdoor")
    with pytest.raises(SetupError, match="not in the log"):
        prove_release(log.folder, other)
    borrowed = altered(prove_release(log.folder, MINE), manifest=other)
    assert failed(checked(borrowed, measurement(other), trusted=trust(log), seen=None)) == {"log inclusion"}


def test_a_manifest_of_another_release_is_refused(log: Log) -> None:
    proof = prove_release(log.folder, MINE)
    verdict = checked(proof, measurement(manifest(4)), trusted=trust(log), seen=None)
    assert failed(verdict) == {"release manifest"}


def test_a_log_nobody_trusts_is_refused(log: Log, tmp_path: Path) -> None:
    proof = prove_release(log.folder, MINE)
    for trusted in (ReleaseTrust(), trust(release_log(tmp_path / "other", SigningKey.generate("other.example"), []))):
        assert failed(checked(proof, measurement(MINE), trusted=trusted, seen=None)) == {"log checkpoint"}
    impostor = SigningKey.generate(ORIGIN)
    fake = prove_release(release_log(tmp_path / "fake", impostor, [MINE]).folder, MINE)
    for each in (fake, altered(fake, log_key=str(log.key)), altered(fake, log_key="")):
        assert failed(checked(each, measurement(MINE), trusted=trust(log), seen=None)) == {"log checkpoint"}


def test_a_rolled_back_log_is_caught(log: Log, tmp_path: Path) -> None:
    shutil.copytree(log.folder, tmp_path / "backup")
    publish(log, manifest(7), KEY)
    seen = log.checkpoint
    proof = prove_release(tmp_path / "backup", MINE, seen.size)
    assert proof.since == 0
    for each in (proof, altered(proof, since=8), prove_release(tmp_path / "backup", MINE, 7)):
        verdict = checked(each, measurement(MINE), trusted=trust(log), seen=seen)
        assert failed(verdict) == {"log consistency"}
        assert "rolled back" in verdict.broken[0].reason


@pytest.mark.parametrize("hidden", [1, 2, 5])
def test_a_forked_log_is_caught(log: Log, tmp_path: Path, hidden: int) -> None:
    backdoors = [manifest(number, branch="backdoor") for number in range(hidden)]
    fork = forked(log, tmp_path / "fork", KEY, backdoors)
    publish(log, manifest(7), KEY)
    seen = log.checkpoint
    verdict = verify_release(
        prove_release(fork.folder, backdoors[0], seen.size),
        measurement(backdoors[0]),
        at=NOON,
        trusted=trust(log),
        seen=seen,
    )
    assert failed(verdict) == {"log consistency"} and "forked" in verdict.broken[0].reason
    if fork.checkpoint.size == seen.size:  # a fork, wherever the proof begins
        blank = checked(
            prove_release(fork.folder, backdoors[0]), measurement(backdoors[0]), trusted=trust(log), seen=seen
        )
        assert "forked" in blank.broken[0].reason


def test_a_fork_without_its_witnesses_is_caught_by_everyone(log: Log, tmp_path: Path) -> None:
    backdoor = manifest(7, branch="backdoor")
    fork = forked(log, tmp_path / "fork", KEY, [backdoor])
    proof = prove_release(fork.folder, backdoor)
    verdict = checked(proof, measurement(backdoor), trusted=trust(log, *WITNESSES, quorum=1), seen=None)
    assert failed(verdict) == {"log witnesses"}


def test_a_proof_from_another_past_or_log_is_refused(log: Log, tmp_path: Path) -> None:
    def reason(proof: ReleaseProof, seen: Checkpoint | None) -> str:
        verdict = checked(proof, measurement(MINE), trusted=trust(log), seen=seen)
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
    assert checked(proof, measurement(MINE), trusted=trust(log), seen=seen).passed
    extra = altered(proof, consistency=(bytes(32),))
    assert not checked(extra, measurement(MINE), trusted=trust(log), seen=seen).passed


def test_witnesses_are_counted_as_asked(log: Log) -> None:
    third = witness_key("w3.example")

    def verdict(*witnesses: SigningKey, quorum: int | None = None) -> Verdict:
        trusted = trust(log, *witnesses, quorum=quorum)
        return checked(prove_release(log.folder, MINE), measurement(MINE), trusted=trusted, seen=None)

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
            checked(prove_release(log.folder, MINE), measurement(MINE), trusted=trusted, seen=None)


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
    assert failed(checked(empty, measurement(MINE), trusted=trust(log), seen=None)) == {"log checkpoint"}
    bundle_only = ReleaseProof(manifest=MINE, sigstore=b"{}")
    assert failed(checked(bundle_only, measurement(MINE), trusted=trust(log), seen=None)) == {"log checkpoint"}
    assert log_origin(empty) == ""


def test_malformed_parts_are_typed_errors(log: Log) -> None:
    proof = prove_release(log.folder, MINE)
    for wrong in (altered(proof, checkpoint="nonsense"), altered(proof, manifest=b"nonsense")):
        with pytest.raises(EvidenceInvalid):
            checked(wrong, measurement(MINE), trusted=trust(log), seen=None)


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


# Still to be accepted: versions, last days, revocations, the age of what the witnesses signed.


def shown(log: Log, number: int = 3, *, at: Any = NOON, witnesses: Any = WITNESSES, **trusted: Any) -> Verdict:
    rules = msgspec.structs.replace(trust(log, *witnesses), **trusted)
    proof = prove_release(log.folder, manifest(number))
    return verify_release(proof, measurement(manifest(number)), at=at, trusted=rules, seen=None)


def test_a_release_below_the_minimum_version_is_refused(log: Log) -> None:
    for minimum in ("0.3", "0.3.0", "0", "0.2.99"):
        assert shown(log, minimum_version=minimum).passed
    for minimum in ("0.4", "0.3.1", "0.10", "1"):
        assert failed(shown(log, minimum_version=minimum)) == {"release version"}
    with pytest.raises(SetupError, match="minimum_version"):
        shown(log, minimum_version="1.0rc1")


@pytest.mark.parametrize(
    ("version", "order"),
    [
        ("1.2.0", (1, 2)),
        ("0", ()),
        ("1.10", (1, 10)),
        ("1.2rc1", None),
        ("1.2+local", None),
        ("", None),
        ("1..2", None),
    ],
)
def test_only_numbers_have_an_order(version: str, order: tuple[int, ...] | None) -> None:
    assert order_of(version) == order


def test_an_expired_release_is_refused_after_its_last_day(log: Log) -> None:
    publish(log, MINE, KEY, expires=NOON.date())
    cosign(log)
    assert shown(log, at=NOON.replace(hour=23)).passed
    assert failed(shown(log, at=NOON + timedelta(days=1))) == {"release expiry"}
    longer = altered(prove_release(log.folder, MINE), expires=date(2027, 1, 1))
    verdict = checked(longer, measurement(MINE), trusted=trust(log), seen=None)
    assert failed(verdict) == {"log inclusion"}


def test_a_revoked_release_is_refused_however_it_is_shown(log: Log) -> None:
    """A node that goes on with a revoked release makes its proof itself: it cannot leave the revocation out."""
    index = log.tiles.find(entry_of(MINE))
    assert index is not None and shown(log).passed
    revoke(log, measurement(MINE), KEY)
    publish(log, manifest(8), KEY)
    cosign(log)
    with pytest.raises(SetupError, match="revoked"):
        prove_release(log.folder, MINE)
    later = tuple(log.tiles.entries())[index + 1 :]
    honest = ReleaseProof(MINE, index, log.inclusion(index), str(log.signed), later=later)
    for proof in (
        honest,
        altered(honest, later=()),
        altered(honest, later=(*later[:3], entry_of(manifest(9)), later[4])),
        altered(honest, later=later[:3] + later[4:]),
    ):
        verdict = checked(proof, measurement(MINE), trusted=trust(log), seen=None)
        assert failed(verdict) == {"log revocation"}
    assert shown(log, 4).passed  # another release is not touched


def test_an_entry_nobody_can_read_may_be_a_revocation(log: Log) -> None:
    log.append(b"cloister recall\n0.3\n", KEY)
    cosign(log)
    assert failed(shown(log)) == {"log revocation"}


def test_a_checkpoint_that_the_witnesses_signed_long_ago_is_refused(log: Log) -> None:
    week = timedelta(days=7)
    assert shown(log, at=NOON + week).passed
    assert failed(shown(log, at=NOON + week + timedelta(seconds=1))) == {"log freshness"}
    assert failed(shown(log, at=NOON + timedelta(hours=2), max_checkpoint_age_s=3600.0)) == {"log freshness"}
    assert failed(shown(log, at=NOON - timedelta(hours=1))) == {"log freshness"}  # signed in the future
    longer = shown(log, at=NOON + 2 * week, max_checkpoint_age_s=30 * 86400.0)
    assert longer.passed
    assert [check.allowed_by for check in longer.checks if check.allowed_by] == ["log.max_checkpoint_age_s 2592000"]
    assert shown(log, at=NOON + 9 * week, witnesses=()).passed  # nobody to say how old it is


def test_a_quorum_must_have_signed_lately(log: Log) -> None:
    late = NOON + timedelta(days=8)
    log.attach(WITNESSES[0].sign(log.checkpoint.text, at=late))
    assert failed(shown(log, at=late)) == {"log freshness"}
    assert shown(log, at=late, quorum=1).passed
