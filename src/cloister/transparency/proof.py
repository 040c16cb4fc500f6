"""The proof that a release is in a log; `verify_release` is pure. The manifest lies beside the entry (C2SP's 64 KiB).
With Sigstore and no checkpoint, the checks `sigstore …` take the place of `log …`."""

import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.checks import Examination, Verdict, decode_evidence
from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import make_folder, needed, only_one, write_whole
from cloister.transparency.checkpoint import (
    USUAL_CHECKPOINT_AGE_S,
    Checkpoint,
    ReleaseTrust,
    SignedCheckpoint,
    read_checkpoint,
)
from cloister.transparency.log import Log
from cloister.transparency.manifest import (
    MAX_MANIFEST_BYTES,
    Published,
    Revoked,
    entry_of,
    measure_running,
    read_entry,
    read_manifest,
)
from cloister.transparency.manifest import measurement as measurement_of
from cloister.transparency.merkle import leaf_hash, verify_consistency, verify_inclusion, verify_rest
from cloister.transparency.note import SigningKey, read_key_file

CLOCKS_MAY_DIFFER = timedelta(minutes=5)


def order_of(version: str) -> tuple[int, ...] | None:
    """The key that versions are ordered by; None for one that is more than numbers and dots."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,7}", version, re.ASCII):
        return None
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def check_version(found: Examination, version: str, trusted: ReleaseTrust) -> None:
    if not trusted.minimum_version:
        found.skipped("release version", f"{version}; the policy asks for none", required=False)
        return
    least, have = order_of(trusted.minimum_version), order_of(version)
    if least is None:
        raise SetupError(f"minimum_version is numbers and dots, not {trusted.minimum_version!r}.", hint="Like: 1.2.0")
    new_enough = have is not None and have >= least
    found.check("release version", new_enough, f"{version} is not {trusted.minimum_version} or newer", version)


def check_age(found: Examination, cosigned: Iterable[int], trusted: ReleaseTrust, at: datetime) -> None:
    """A checkpoint is as old as the oldest signature of its quorum, the newest being counted first."""
    name = "log freshness"
    if not trusted.needed:
        found.skipped(name, "the policy names no witness, so the checkpoint's age is unknown", required=False)
        return
    times = sorted(cosigned, reverse=True)
    if len(times) < trusted.needed:
        found.skipped(name, "too few witnesses signed")
        return
    age = at.timestamp() - times[trusted.needed - 1]
    usual = -CLOCKS_MAY_DIFFER.total_seconds() <= age <= min(trusted.max_checkpoint_age_s, USUAL_CHECKPOINT_AGE_S)
    relaxed = not usual and 0 < age <= trusted.max_checkpoint_age_s
    days = f"witnessed {age / 86400:.1f} days ago"
    allowed = f"log.max_checkpoint_age_s {trusted.max_checkpoint_age_s:.0f}" if relaxed else ""
    found.check(name, usual, days, days, allowed_by=allowed)


_FOLDER = "manifest"


def find_release(log: Log, measured: bytes) -> tuple[int, Published] | None:
    """The newest entry that publishes the release with this measurement; None if there is none, or it is revoked."""
    found: tuple[int, Published] | None = None
    for index, entry in enumerate(log.tiles.entries()):
        match read_entry(entry):
            case Published(measurement=named) as release if named == measured:
                found = index, release
            case Revoked(measurement=named) if named == measured:
                found = None
    return found


def publish(log: Log, manifest: bytes, key: SigningKey, *, expires: date | None = None) -> tuple[int, bool]:
    """The entry's index, and whether it is new. What was revoked stays revoked."""
    entry, measured = entry_of(manifest, expires), measurement_of(manifest)
    if Revoked(measured).encoded() in log.tiles.entries():
        raise SetupError("This release was revoked, and stays so.", hint="Publish a new version.")
    folder = log.folder / _FOLDER
    with needed(f"The manifest cannot be put into {folder}"):
        make_folder(folder)
        write_whole(folder / measured.hex(), manifest)
    found = find_release(log, measured)
    if found is None or (expires is not None and found[1].expires != expires):
        return log.append(entry, key), True
    return found[0], False


def revoke(log: Log, measured: bytes, key: SigningKey) -> tuple[int, bool]:
    entry = Revoked(measured).encoded()
    if (place := log.tiles.find(entry)) is not None:
        return place, False
    if find_release(log, measured) is None:
        raise SetupError(f"The log has no release {measured.hex()}.", hint="`cloister log audit` lists those it has.")
    return log.append(entry, key), True


def published_manifest(log: Log, measured: bytes) -> bytes:
    try:
        with (log.folder / _FOLDER / measured.hex()).open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as reason:
        raise EvidenceInvalid(f"The log lacks the manifest {measured.hex()} ({reason.strerror}).") from None
    if measurement_of(data) != measured:
        raise EvidenceInvalid(f"The log's manifest {measured.hex()} is not what its name says.")
    return data


MAX_PROOF_BYTES = 1 << 20
MAX_LATER_ENTRIES = 2048
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class ReleaseProof(Struct, frozen=True, forbid_unknown_fields=True):
    """`consistency` leads from the tree the client saw last (`since`, 0: none) to this checkpoint."""

    manifest: Annotated[bytes, Meta(max_length=262144)]
    index: Annotated[int, Meta(ge=0)] = 0
    inclusion: Annotated[tuple[Digest, ...], Meta(max_length=64)] = ()
    checkpoint: Annotated[str, Meta(max_length=65536)] = ""
    since: Annotated[int, Meta(ge=0)] = 0
    consistency: Annotated[tuple[Digest, ...], Meta(max_length=128)] = ()
    expires: date | None = None  # The release's last day, as its entry has it.
    later: Annotated[tuple[Annotated[bytes, Meta(max_length=256)], ...], Meta(max_length=MAX_LATER_ENTRIES)] = ()
    """Every entry after the release's: a revocation would be among them."""
    log_key: Annotated[str, Meta(max_length=1024)] = ""  # as the node knows it; compared, or pinned on first use
    sigstore: Annotated[bytes, Meta(max_length=262144)] = b""


def write_proof(proof: ReleaseProof) -> bytes:
    return msgspec.json.encode(proof)


def read_proof(data: bytes) -> ReleaseProof:
    return decode_evidence(data, ReleaseProof, "A release's proof", limit=MAX_PROOF_BYTES)


def prove_release(log_dir: Path, manifest: bytes, since: int = 0) -> ReleaseProof:
    """For a client that last saw `since` entries. If the log never had as many, it gets a proof from 0, and notices."""
    log = Log.open(log_dir)
    found = find_release(log, measurement_of(manifest))
    if found is None:
        message = f"The release {measurement_of(manifest).hex()} is not in the log {log.origin}, or was revoked there."
        raise SetupError(message, hint="Put it there with `cloister log append`, or serve a release that is.")
    index, release = found
    later = tuple(log.tiles.entries())[index + 1 :]
    if len(later) > MAX_LATER_ENTRIES:
        hint = "Serve a newer one."
        raise SetupError(f"{len(later)} entries follow the release's: it is too old to prove.", hint=hint)
    known = since if 0 <= since <= log.checkpoint.size else 0
    inclusion, consistency = log.inclusion(index), log.consistency(known)
    placed = ReleaseProof(manifest, index, inclusion, str(log.signed), known, consistency)
    proof = msgspec.structs.replace(placed, expires=release.expires, later=later, log_key=str(log.key))
    leaf = leaf_hash(release.encoded())
    if not verify_inclusion(index, log.checkpoint.size, leaf, proof.inclusion, log.checkpoint.root):
        hint = "`cloister log audit` says more."
        raise EvidenceInvalid("The log's tiles do not add up to its checkpoint.", hint=hint)
    return proof


def verify_release(
    proof: ReleaseProof, measurement: bytes, *, at: datetime, trusted: ReleaseTrust, seen: Checkpoint | None
) -> Verdict:
    """`seen`: the last checkpoint of the same log, if any."""
    found = Examination()
    version = read_manifest(proof.manifest).version
    reason = "the manifest is not that of the measurement in the evidence"
    found.check("release manifest", measurement_of(proof.manifest) == measurement, reason, found=f"version {version}")
    found.claim(release_version=version, release_measurement=measurement_of(proof.manifest).hex())
    check_version(found, version, trusted)
    if proof.checkpoint:
        _verify_in_log(found, proof, at, trusted, seen)
    elif proof.sigstore and trusted.sigstore is not None:
        from cloister.transparency.sigstore_bundle import verify_sigstore

        found.include(verify_sigstore(measurement, proof.sigstore, trust=trusted.sigstore))
    else:
        missing = "a Sigstore bundle, but no Sigstore identity is trusted" if proof.sigstore else "nothing"
        found.failed("log checkpoint", f"the proof has no checkpoint of a log: it has {missing}")
    return found.verdict()


def log_origin(proof: ReleaseProof) -> str:
    """Which log a proof is about, so that its last checkpoint can be looked up; "" if none."""
    return read_checkpoint(proof.checkpoint).checkpoint.origin if proof.checkpoint else ""


def _verify_in_log(
    found: Examination, proof: ReleaseProof, at: datetime, trusted: ReleaseTrust, seen: Checkpoint | None
) -> None:
    signed = read_checkpoint(proof.checkpoint)
    now = signed.checkpoint
    found.claim(log_origin=now.origin, log_size=now.size, log_index=proof.index)
    _check_signature(found, proof, signed, trusted)
    leaf = leaf_hash(entry_of(proof.manifest, proof.expires))
    included = verify_inclusion(proof.index, now.size, leaf, proof.inclusion, now.root)
    reason = "the release is not in the log: its proof does not lead to the checkpoint's root"
    if found.check("log inclusion", included, reason, f"entry {proof.index} of {now.size}"):
        _check_revocation(found, proof, now)
        if (last := proof.expires) is None:
            found.skipped("release expiry", "the log gives it no last day", required=False)
        else:
            day = at.astimezone(UTC).date()
            found.check("release expiry", day <= last, f"its last day was {last}", f"to {last}")
    check_age(found, check_witnesses(found, signed, trusted), trusted, at)
    _check_consistency(found, proof, now, seen)


def _check_signature(found: Examination, proof: ReleaseProof, signed: SignedCheckpoint, trusted: ReleaseTrust) -> None:
    keys = [key for key in trusted.log_keys() if key.name == signed.checkpoint.origin]
    signers = [key for key in keys if signed.signed_by(key)]
    if not keys:
        names = ", ".join(ascii(key.name) for key in trusted.log_keys()) or "none"
        reason = f"the log {signed.checkpoint.origin!a} is not a trusted one (those are: {names})"
    elif not signers:
        reason = "the checkpoint is not signed by the log's key"
    elif proof.log_key not in {"", *map(str, signers)}:
        reason = "the node knows the log by another key than the trusted one"
    else:
        found.passed("log checkpoint", f"signed by {signers[0].name}")
        return
    found.failed("log checkpoint", reason)


def _check_revocation(found: Examination, proof: ReleaseProof, now: Checkpoint) -> None:
    name = "log revocation"
    entries = [read_entry(entry) for entry in proof.later]
    if not verify_rest(proof.index, now.size, [leaf_hash(entry) for entry in proof.later], proof.inclusion):
        found.failed(name, "the entries shown are not all that follow the release's: a revocation may be among them")
    elif None in entries:
        found.failed(name, "an entry after the release's is of a kind not known here: it may revoke the release")
    else:
        revoked = Revoked(measurement_of(proof.manifest)) in entries
        found.check(name, not revoked, "the release was revoked", found=f"none in {len(entries)} later entries")


def check_witnesses(found: Examination, signed: SignedCheckpoint, trusted: ReleaseTrust) -> Collection[int]:
    signed_at = {witness.name: signed.cosigned_by(witness) for witness in trusted.witness_keys()}
    cosigned = {name: when for name, when in signed_at.items() if when is not None}
    found.claim(log_witnesses={name: _utc(when) for name, when in cosigned.items()})
    if not trusted.needed:
        found.skipped("log witnesses", "the policy names no witnesses", required=False)
        return cosigned.values()
    have = f"{len(cosigned)} of {len(trusted.witnesses)} trusted witnesses signed the checkpoint"
    found.check("log witnesses", len(cosigned) >= trusted.needed, f"{have}; {trusted.needed} are needed", found=have)
    return cosigned.values()


def _check_consistency(found: Examination, proof: ReleaseProof, now: Checkpoint, seen: Checkpoint | None) -> None:
    name = "log consistency"
    if seen is None:
        if proof.since or proof.consistency:
            found.failed(name, f"the proof begins at {proof.since} entries, but none were seen before")
        else:
            found.skipped(name, "this log was not seen before", required=False)
    elif seen.origin != now.origin:
        found.failed(name, f"another log was seen before: {seen.origin!a}")
    elif now.size < seen.size:
        found.failed(name, f"rolled back: the log has {now.size} entries, and had {seen.size} when last seen")
    elif now.size == seen.size and now.root != seen.root:
        found.failed(name, f"forked: the log's {now.size} entries are not those last seen")
    elif proof.since != seen.size:
        found.failed(name, f"the proof begins at {proof.since} entries, not at the {seen.size} last seen")
    elif seen.size == 0:
        found.check(name, not proof.consistency, "a proof from the empty log is not empty", found="was empty")
    else:
        holds = verify_consistency(seen.size, now.size, seen.root, now.root, proof.consistency)
        reason = f"forked: the log's {now.size} entries do not begin with the {seen.size} last seen"
        found.check(name, holds, reason, found=f"continues the {seen.size} entries last seen")


def _utc(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return str(seconds)


ORIGIN_PREFIX = "development/"


@dataclass(frozen=True)
class Release:
    manifest: bytes
    log_dir: Path
    log_key: str

    @property
    def measurement(self) -> bytes:
        return measurement_of(self.manifest)

    def prove(self, since: int = 0) -> ReleaseProof:
        return prove_release(self.log_dir, self.manifest, since)


def development_release(folder: Path, also: Sequence[str] = ()) -> Release:
    manifest = measure_running(also).encoded()
    kept = f"The development log cannot be kept in {folder}"
    try:
        with needed(kept):
            make_folder(folder, mode=0o700)
        with needed(kept), only_one(folder / ".lock"):
            key = read_key_file(folder / "log.key", new=ORIGIN_PREFIX + secrets.token_hex(8))
            log = _log_in(folder / "log", key)
            if key.verifier != log.key:
                raise EvidenceInvalid("its key is not the log's.")
            publish(log, manifest, key)
    except EvidenceInvalid as wrong:
        hint = "Remove the folder: it is made again, with a new key."
        raise SetupError(f"The development log in {folder} is damaged: {wrong.message}", hint=hint) from None
    return Release(manifest, log.folder, str(log.key))


def _log_in(folder: Path, key: SigningKey) -> Log:
    """A partial log that a crash left is made again: no client can have seen it."""
    if (folder / "checkpoint").exists():
        return Log.open(folder)
    if (folder / "tile").exists():
        raise EvidenceInvalid("its checkpoint is gone.")
    return Log.create(folder, key)
