"""Whether a node's release is one the policy accepts: by name, by a log, or through Sigstore.

Pure: what the client saw of logs before is handed in. Only a development node's own log may be believed on first use,
which says nothing that the node itself does not; its key is pinned then, so that a change shows.
"""

from __future__ import annotations

from msgspec.structs import replace

from cloister.attest.evidence import NodeEvidence
from cloister.attest.policy import Policy
from cloister.checks import Examination, Verdict
from cloister.transparency.checkpoint import Checkpoint
from cloister.transparency.dev_log import ORIGIN_PREFIX
from cloister.transparency.keys import Algorithm, VerifierKey
from cloister.transparency.proof import verify_release
from cloister.transparency.trust import ReleaseTrust


def learns_on_first_use(evidence: NodeEvidence, policy: Policy) -> bool:
    """Whether the log's key may be taken from the node: it proves nothing anyway, and the user said so."""
    return policy.allow_software_tee and evidence.tee == "none" and not policy.names_releases


def check_release(
    evidence: NodeEvidence, policy: Policy, *, pinned: str | None = None, seen: Checkpoint | None = None
) -> Verdict:
    """The verdict. `pinned` is the log's key as this client met it here first, `seen` the log's last checkpoint."""
    found = Examination()
    first_use = learns_on_first_use(evidence, policy)
    if policy.measurements:
        known = evidence.measurement.hex() in {each.lower() for each in policy.measurements}
        found.check("release", known, f"{evidence.measurement.hex()} is not among the policy's measurements")
    elif not policy.names_releases and not first_use:
        found.skipped(
            "release", "the policy names neither measurements nor a log nor a signer, so none can be accepted"
        )
    trusted = _met_here(found, evidence, pinned) if first_use else policy.release
    if trusted.logs or trusted.sigstore:
        _check_public(found, evidence, trusted, seen)
    return found.verdict()


def _met_here(found: Examination, evidence: NodeEvidence, pinned: str | None) -> ReleaseTrust:
    """The trust in the log that a development node brings along."""
    name = "log key"
    given = evidence.release.log_key if evidence.release else ""
    if not given.startswith(ORIGIN_PREFIX):  # any other name belongs to a log that somebody may really rely on
        found.failed(name, f"a development node's log is called {ORIGIN_PREFIX}…, and this one is not")
    elif VerifierKey.parse(given).algorithm is not Algorithm.ED25519:
        found.failed(name, "the key is not a log's")
    elif pinned is None:
        found.skipped(name, "met for the first time, and pinned from now on", required=False)
        return ReleaseTrust(logs=(given,))
    else:
        found.check(name, given == pinned, "the log here had another key when it was met first", found="as met first")
        return ReleaseTrust(logs=(pinned,))
    return ReleaseTrust()


def _check_public(found: Examination, evidence: NodeEvidence, trusted: ReleaseTrust, seen: Checkpoint | None) -> None:
    proof = evidence.release
    if proof is None:
        found.failed("release proof", "the node does not show that its release is public")
        return
    if not trusted.logs:
        proof = replace(proof, checkpoint="")
    found.include(verify_release(proof, evidence.measurement, trusted=trusted, seen=seen))
