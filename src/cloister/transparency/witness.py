"""Witnesses and auditors of a log. A witness signs a checkpoint only if it continues the last one that it signed, and
stores it before its signature leaves (C2SP tlog-cosignature, tlog-witness). An auditor recomputes the whole log."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cloister.checks import Examination, Verdict
from cloister.errors import EvidenceInvalid, VerificationFailed
from cloister.transparency.checkpoint import Checkpoint, ReleaseTrust, SignedCheckpoint
from cloister.transparency.log import Log
from cloister.transparency.manifest import CloudListed, NodeNamed, Revoked, read_entry, read_manifest
from cloister.transparency.merkle import EMPTY_ROOT, TILE_WIDTH, fold, leaf_hash, verify_consistency
from cloister.transparency.note import Signature, SigningKey, VerifierKey
from cloister.transparency.proof import check_witnesses, published_manifest
from cloister.transparency.seen import SeenLogs

STATE_FILE = "witnessed.json"


class Witness:
    """One witness. The folder `state` remembers what it signed."""

    def __init__(self, key: SigningKey, state: Path) -> None:
        self._key = key
        self._memory = SeenLogs(state / STATE_FILE)

    def last(self, origin: str) -> Checkpoint | None:
        return self._memory.last(origin)

    def meet(self, log: VerifierKey) -> None:
        """Pin this log's key; another key for the same name is refused."""
        self._memory.pin(log.name, log)

    def cosign(self, signed: SignedCheckpoint, consistency: Sequence[bytes], *, at: datetime) -> Signature:
        now = signed.checkpoint
        known = self._memory.pinned(now.origin)
        if known is None:
            message = f"This witness does not know the log {now.origin!a}."
            raise VerificationFailed(message, checks=("log checkpoint",), hint="Give its key.")
        if not signed.signed_by(VerifierKey.parse(known)):
            raise VerificationFailed("The checkpoint is not signed by the log's key.", checks=("log checkpoint",))
        last = self._memory.last(now.origin)
        new = last is None or (last.size == 0 and not consistency)
        if last and not new and not verify_consistency(last.size, now.size, last.root, now.root, consistency):
            shows = f"The log {now.origin!a} shows {now.size} entries that do not continue"
            hint = "It was forked or rolled back. Keep both checkpoints: together they prove it."
            message = f"{shows} the {last.size} signed before."
            raise VerificationFailed(message, checks=("log consistency",), hint=hint)
        self._memory.remember(signed, after=last)
        return self._key.sign(now.text, at=at)

    def visit(self, log: Log, *, at: datetime) -> Signature:
        last = self.last(log.origin)
        reachable = last is not None and last.size <= log.checkpoint.size
        return self.cosign(log.signed, log.consistency(last.size) if last and reachable else (), at=at)


def audit(folder: Path, *, trusted: ReleaseTrust, earlier: Checkpoint | None = None) -> Verdict:
    """Without a trusted log key the log's own is used, and reported as not checked."""
    log = Log.open(folder)
    found = Examination()
    found.claim(log_origin=log.origin, log_size=log.checkpoint.size, log_root=log.checkpoint.root.hex())
    _check_key(found, log, trusted)
    try:
        entries = list(log.tiles.entries())
    except EvidenceInvalid as wrong:
        found.failed("log entries", wrong.message)
        return found.verdict()
    leaves = [leaf_hash(entry) for entry in entries]
    reason = "the entries do not hash to the checkpoint's root"
    found.check("log entries", fold(leaves) == log.checkpoint.root, reason, found=f"{len(entries)} recomputed")
    _check_tiles(found, log, leaves)
    _check_manifests(found, log, entries)
    check_witnesses(found, log.signed, trusted)
    _check_earlier(found, log.checkpoint, leaves, earlier)
    return found.verdict()


def _check_key(found: Examination, log: Log, trusted: ReleaseTrust) -> None:
    if not trusted.logs:
        found.skipped("log key", "no key was given to compare the log's own with", required=False)
        found.passed("log checkpoint", "signed by the key beside the log")
        return
    holds = any(log.signed.signed_by(key) for key in trusted.log_keys())
    shown = f"signed by {log.key.name}"
    found.check("log checkpoint", holds, "the checkpoint is not signed by a trusted key", found=shown)


def _check_tiles(found: Examination, log: Log, leaves: list[bytes]) -> None:
    row, level, count = leaves, 0, 0
    try:
        while row:
            tiles = [row[at : at + TILE_WIDTH] for at in range(0, len(row), TILE_WIDTH)]
            for index, tile in enumerate(tiles):
                if log.tiles.hashes(level, index) != tile:
                    found.failed("log tiles", f"tile {index} of level {level} is not what the entries make it")
                    return
            count += len(tiles)
            row = [fold(tile) for tile in tiles if len(tile) == TILE_WIDTH]
            level += 1
    except EvidenceInvalid as wrong:
        found.failed("log tiles", wrong.message)
        return
    found.passed("log tiles", f"{count} recomputed")


def _check_manifests(found: Examination, log: Log, entries: list[bytes]) -> None:
    releases: dict[str, str] = {}
    revoked: list[str] = []
    for index, entry in enumerate(entries):
        read = read_entry(entry)
        if read is None:
            found.failed("log manifests", f"entry {index} is neither a release's, a revocation, a cloud's nor a node's")
            return
        if isinstance(read, CloudListed | NodeNamed):
            continue
        measured = read.measurement
        try:
            if measured.hex() in revoked:
                raise EvidenceInvalid(f"Entry {index} names a release that was revoked before.")
            if isinstance(read, Revoked):
                if measured.hex() not in releases:
                    raise EvidenceInvalid(f"Entry {index} revokes what was never published.")
                revoked.append(measured.hex())
                continue
            releases[measured.hex()] = read_manifest(published_manifest(log, measured)).version
            if releases[measured.hex()] != read.version:
                raise EvidenceInvalid(f"Entry {index} names another version than its manifest.")
        except EvidenceInvalid as wrong:
            found.failed("log manifests", wrong.message)
            return
    found.passed("log manifests", f"{len(releases)} releases")
    found.claim(releases=releases, revoked=revoked)


def _check_earlier(found: Examination, now: Checkpoint, leaves: list[bytes], earlier: Checkpoint | None) -> None:
    name = "log consistency"
    if earlier is None:
        found.skipped(name, "no earlier checkpoint was given", required=False)
    elif earlier.origin != now.origin:
        found.failed(name, f"the earlier checkpoint is of another log: {earlier.origin!a}")
    elif earlier.size > now.size:
        found.failed(name, f"rolled back: {now.size} entries now, {earlier.size} earlier")
    else:
        root = fold(leaves[: earlier.size]) if earlier.size else EMPTY_ROOT
        reason = f"forked: the first {earlier.size} entries are not those of the earlier checkpoint"
        found.check(name, root == earlier.root, reason, found=f"continues the {earlier.size} entries seen earlier")
