"""A node's evidence against a policy: the machine's report, what it is bound to, its GPUs, and what the node says.

The release is only bound to the report here (Petridish §4.1); whether it is public is checked in `transparency`.
"""

from __future__ import annotations

from datetime import datetime

from cloister.attest.attester import Tee, verify_software
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
    found.claim("started", statement.started)
    found.claim("measurement", evidence.measurement.hex())
    found.claim("missing_layers", list(statement.missing_layers))
    _check_code(found, statement, evidence.tee)
    accepted = policy.accept_missing_layers
    if accepted is None:
        accepted = UNPRIVILEGED if evidence.tee == "none" else ()
    missing = sorted(set(statement.missing_layers) - set(accepted))
    found.check(
        "sandbox",
        not missing,
        f"the node runs without {', '.join(missing)}",
        found="complete"
        if not statement.missing_layers
        else f"without {', '.join(statement.missing_layers)}, accepted",
    )


def _check_code(found: Examination, statement: Statement, tee: Tee) -> None:
    found.claim("code", statement.code)
    if statement.code == "release":
        found.passed("code", "only the release's files and packages run")
    elif tee == "none":
        found.skipped("code", "the node did not compare what it runs with a release", required=False)
    else:
        found.failed("code", "what the node runs beside its own source was not compared with a release")
