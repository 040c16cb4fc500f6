"""A node's evidence against a policy: the machine's report, what it is bound to, its GPUs, and what the node says.

The release is only bound to the report here (Petridish §4.1); whether it is public is checked in `transparency`.
"""

from __future__ import annotations

from datetime import datetime

from cloister.attest.attester import verify_software
from cloister.attest.evidence import GpuEvidence, NodeEvidence, Statement, read_statement
from cloister.attest.nvidia import References, verify_gpu_reports, verify_gpu_token
from cloister.attest.policy import Policy
from cloister.attest.snp import verify_snp
from cloister.attest.tdx import verify_tdx
from cloister.checks import Examination, Verdict

UNPRIVILEGED = ("memory_lock", "no_swap")
"""Layers that a developer's own account may not be able to set. They keep memory off the operator's disk, and a node
without hardware can hide nothing from its operator anyway."""


def verify_node(evidence: NodeEvidence, nonce: bytes, *, at: datetime, policy: Policy) -> Verdict:
    """The verdict on all of the evidence but the release's place in a log. EvidenceInvalid if it is malformed."""
    found = Examination()
    _show_relaxations(found, policy)
    _check_tee(found, evidence, policy)
    report = _verify_report(evidence, nonce, at, policy)
    found.include(Verdict(report.checks))
    found.claim("report", dict(report.claims))
    if evidence.tee == "none":
        found.skipped("launch", "no hardware measured how this node started", required=False)
    _check_gpu(found, evidence.gpu, nonce, at, policy)
    _check_statement(found, evidence, policy)
    return found.verdict()


def _show_relaxations(found: Examination, policy: Policy) -> None:
    """What the policy lets go, whether or not this node needs it: a user should not have to know the file by heart."""
    names = policy.relaxations()
    found.claim("relaxations", list(names))
    found.check("relaxations", not names, "what is not demanded", "none", allowed_by=", ".join(names))


def _check_tee(found: Examination, evidence: NodeEvidence, policy: Policy) -> None:
    accepted = (*policy.tees, "none") if policy.allow_software_tee else policy.tees
    found.claim("tee", evidence.tee)
    found.check(
        "tee", evidence.tee in accepted, f"{evidence.tee} is not among {', '.join(accepted)}", found=evidence.tee
    )


def _verify_report(evidence: NodeEvidence, nonce: bytes, at: datetime, policy: Policy) -> Verdict:
    bound = evidence.report_data(nonce)
    if evidence.tee == "sev-snp":
        pieces = (*evidence.certificates, *policy.snp_revocation_lists)
        return verify_snp(evidence.report, pieces, at=at, policy=policy.snp, report_data=bound)
    if evidence.tee == "tdx":
        collateral = evidence.collateral or None
        return verify_tdx(evidence.report, collateral, at=at, policy=policy.tdx, report_data=bound)
    return verify_software(evidence.report, at=at, allowed=policy.allow_software_tee, report_data=bound)


def _check_gpu(found: Examination, gpu: GpuEvidence | None, nonce: bytes, at: datetime, policy: Policy) -> None:
    """GPUs answer the client's own nonce; the CPU's report data binds this evidence to the node."""
    name = "gpu evidence"
    if gpu is None:
        if policy.require_gpu:
            found.failed(name, "the policy asks for a confidential GPU, and the node shows none")
        else:
            found.skipped(name, "the node shows none, and the policy asks for none", required=False)
        return
    if gpu.kind == "token" and policy.gpu_keys is None:
        found.skipped(name, "the policy has no gpu_keys to check NVIDIA's token with")
        return
    if gpu.kind == "token":
        verdict = verify_gpu_token(gpu.data, policy.gpu_keys or b"", nonce, at=at, policy=policy.gpu)
    else:
        known = References(policy.gpu_manifests, (*policy.gpu_ocsp, *gpu.ocsp))
        verdict = verify_gpu_reports(gpu.data, nonce, at=at, policy=policy.gpu, references=known)
    found.passed(name, gpu.kind)
    found.include(Verdict(verdict.checks))
    found.claim("gpu", dict(verdict.claims))


def _check_statement(found: Examination, evidence: NodeEvidence, policy: Policy) -> None:
    statement = read_statement(evidence.statement)
    found.claim("model", statement.model)
    found.claim("weights", statement.weights.hex())
    found.claim("levels", list(statement.levels))
    found.claim("started", statement.started)
    found.claim("measurement", evidence.measurement.hex())
    found.claim("missing_layers", list(statement.missing_layers))
    _check_weights(found, statement, policy)
    _check_settings(found, statement, policy)
    _check_vault_hosts(found, statement, policy)
    _check_sandbox(found, evidence, statement, policy)


def _check_weights(found: Examination, statement: Statement, policy: Policy) -> None:
    name, digest = "weights digest", statement.weights.hex()
    if policy.weights is None:
        found.skipped(name, f"{digest}; the policy names none", required=False)
    else:
        known = digest in {pin.lower() for pin in policy.weights}
        found.check(name, known, f"{digest} is not among the policy's weights", digest)


def _check_settings(found: Examination, statement: Statement, policy: Policy) -> None:
    settings, words = statement.settings, statement.settings.in_words()
    found.claim("settings", settings.as_json())
    found.claim("settings_hash", settings.hash.hex())
    whole = settings.hash == statement.settings_hash
    found.check("settings", whole, "their hash is not the one the node states", "; ".join(words))
    policy.settings.check(found, settings)


def _check_vault_hosts(found: Examination, statement: Statement, policy: Policy) -> None:
    name, hosts = "vault hosts", statement.settings.vault_hosts
    if not hosts:
        found.passed(name, "none")
        return
    allowed = "settings.allow_unseen_vault_hosts" if policy.settings.allow_unseen_vault_hosts else ""
    reason = f"prompts go to {', '.join(hosts)}, and nothing shows what that is"
    found.check(name, False, reason, allowed_by=allowed)


def _check_sandbox(found: Examination, evidence: NodeEvidence, statement: Statement, policy: Policy) -> None:
    """Whoever lets layers be missing may lose more of them without a word: a policy that accepts none accepts neither
    that. At a node without hardware it would protect nobody."""
    accepted = policy.accept_missing_layers
    if accepted is None:
        accepted = UNPRIVILEGED if evidence.tee == "none" else ()
    missing = sorted(set(statement.missing_layers) - set(accepted))
    may_lose = statement.settings.sandbox == "degraded" and not accepted
    found.check(
        "sandbox",
        not missing and not may_lose,
        f"the node runs without {', '.join(missing)}" if missing else "it was started with --allow-degraded-sandbox",
        found="complete"
        if not statement.missing_layers
        else f"without {', '.join(statement.missing_layers)}, accepted",
    )
