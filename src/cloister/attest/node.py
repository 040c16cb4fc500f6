"""A node's evidence against a policy. Whether its release is public is checked in `transparency`."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from cloister.attest.attester import Tee, verify_software
from cloister.attest.evidence import HOST_DOMAIN, NodeEvidence, Statement, read_statement
from cloister.attest.nvidia.reports import SWITCH, References, verify_gpu_reports
from cloister.attest.policy import Policy
from cloister.attest.profile import broken_demands
from cloister.attest.snp import verify_snp
from cloister.attest.tdx import verify_tdx
from cloister.checks import Examination, Verdict

UNPRIVILEGED = ("memory_lock", "no_swap")  # A node without hardware hides nothing from its operator anyway
GPU_CHECK = "gpu evidence"
COMPUTES_ON_GPU = "no_devices"  # The layer of the sandbox that is missing where service and vaults hold a GPU open.
LONGEST_HELD_S = 24 * 3600  # The longest that a node may hold one channel key.


def verify_node(evidence: NodeEvidence, nonce: bytes, *, at: datetime, policy: Policy) -> Verdict:
    """The verdict on all of the evidence but the release's place in a log. EvidenceInvalid if it is malformed."""
    found = Examination()
    names = policy.relaxations()  # all, whether or not this node needs them: users need not know the file by heart
    found.claim(relaxations=list(names))
    found.check("relaxations", not names, "not demanded", "none", allowed_by=", ".join(names))
    _check_tee(found, evidence, policy)
    report = _verify_report(evidence, evidence.report_data(nonce), at, policy)
    found.include(Verdict(report.checks))
    found.claim(report=dict(report.claims))
    if evidence.tee == "none":
        found.skipped("launch", "no hardware measured how this node started", required=False)
    if evidence.gpu is None and policy.require_gpu:
        found.failed(GPU_CHECK, "the policy asks for a confidential GPU, and the node shows none")
    else:
        _check_gpu(found, evidence, evidence.gpu_nonce(nonce), at, policy)
    statement = read_statement(evidence.statement)
    found.claim(model=statement.model, weights=statement.weights.hex(), levels=list(statement.levels))
    found.claim(started=statement.started, measurement=evidence.measurement.hex())
    found.claim(missing_layers=list(statement.missing_layers))
    _check_weights(found, statement, policy)
    settings, words = statement.settings, statement.settings.in_words()
    found.claim(settings=settings.as_json(), settings_hash=settings.hash.hex())
    whole = settings.hash == statement.settings_hash
    found.check("settings", whole, "their hash is not the one the node states", "; ".join(words))
    broken = broken_demands(settings, evidence.tee, statement.code)
    found.check("profile", not broken, f"{settings.profile}, but {'; '.join(broken)}", settings.profile)
    policy.settings.check(found, settings)
    _check_code(found, statement, evidence.tee)
    _check_sandbox(found, evidence, statement, policy)
    _check_freshness(found, statement, at)
    _check_vault_hosts(found, evidence, nonce, at, policy)
    return found.verdict()


def _check_tee(found: Examination, evidence: NodeEvidence, policy: Policy) -> None:
    accepted = (*policy.tees, "none") if policy.allow_software_tee else policy.tees
    found.claim(tee=evidence.tee)
    holds = evidence.tee in accepted
    found.check("tee", holds, f"{evidence.tee} is not among {', '.join(accepted)}", found=evidence.tee)


def _verify_report(evidence: NodeEvidence, bound: bytes, at: datetime, policy: Policy) -> Verdict:
    if evidence.tee == "sev-snp":
        pieces = (*evidence.certificates, *policy.snp_revocation_lists)
        return verify_snp(evidence.report, pieces, at=at, policy=policy.snp, report_data=bound)
    if evidence.tee == "tdx":
        collateral = evidence.collateral or policy.tdx_collateral
        return verify_tdx(evidence.report, collateral, at=at, policy=policy.tdx, report_data=bound)
    return verify_software(evidence.report, at=at, allowed=policy.allow_software_tee, report_data=bound)


def _check_gpu(found: Examination, evidence: NodeEvidence, asked: bytes, at: datetime, policy: Policy) -> None:
    """GPUs signed over `asked`, which names nonce and node; the CPU's report data covers what they signed."""
    gpu, statement = evidence.gpu, read_statement(evidence.statement)
    if gpu is None:  # a TEE hides its memory from the operator; an unchecked GPU may disclose the same prompts
        if evidence.tee != "none" and (statement.gpus > 0 or COMPUTES_ON_GPU in statement.missing_layers):
            allowed = "gpu.allow_unseen" if policy.gpu.allow_unseen else ""
            found.check(GPU_CHECK, False, "the node computes on a GPU and shows no evidence of it", allowed_by=allowed)
        else:
            found.skipped(GPU_CHECK, "the node shows none, and the policy asks for none", required=False)
        return
    known = References(policy.gpu_manifests, (*policy.gpu_ocsp, *gpu.ocsp))
    verdict = verify_gpu_reports(gpu.data, asked, at=at, policy=policy.gpu, references=known)
    found.passed(GPU_CHECK, gpu.kind)
    found.include(Verdict(verdict.checks))
    found.claim(gpu=dict(verdict.claims))
    shown = sum(one.get("architecture") != SWITCH for one in verdict.claims.get("gpus", ()))
    found.check("gpus shown", shown == statement.gpus, f"{shown} of {statement.gpus} GPUs", f"all {shown}")


def _check_weights(found: Examination, statement: Statement, policy: Policy) -> None:
    name, digest = "weights digest", statement.weights.hex()
    if policy.weights is None:
        found.skipped(name, f"{digest}; the policy names none", required=False)
    else:
        found.listed(name, digest, policy.weights, "weights")


def _check_vault_hosts(found: Examination, evidence: NodeEvidence, nonce: bytes, at: datetime, policy: Policy) -> None:
    """Machines that keep the node's vaults prove what the node itself must, for the same nonce."""
    name, statement = "vault hosts", read_statement(evidence.statement)
    pinned = {pin.address: pin.certificate for pin in statement.vault_hosts}
    states: list[dict[str, Any]] = []
    for address in statement.settings.vault_hosts:
        shown = [one for one in evidence.vault_hosts if one.channel_key == pinned.get(address)]
        if not shown:
            allowed = "settings.allow_unseen_vault_hosts" if policy.settings.allow_unseen_vault_hosts else ""
            reason = f"prompts go to {address}, which shows no evidence"
            found.check(name, False, reason, allowed_by=allowed)
            states.append({"address": address, "state": "unseen"})
            continue
        verdict = verify_vault_host(shown[0], nonce, at=at, policy=policy, measurement=evidence.measurement)
        same = read_statement(shown[0].statement).weights == statement.weights
        found.include(Verdict(tuple(replace(one, name=f"vault host {address}: {one.name}") for one in verdict.checks)))
        found.check(f"vault host {address}: weights", same, "it has others than the node", "the node's")
        state = "verified" if verdict.passed and same else "refused"
        states.append({"address": address, "state": state, **verdict.claims})
    if not statement.settings.vault_hosts:
        found.passed(name, "none")
    found.claim(vault_hosts=states)


def verify_vault_host(
    evidence: NodeEvidence, nonce: bytes, *, at: datetime, policy: Policy, measurement: bytes
) -> Verdict:
    """`measurement` is of the node's release. The evidence has the hash of a TLS certificate as channel key."""
    found = Examination()
    _check_tee(found, evidence, policy)
    report = _verify_report(evidence, evidence.report_data(nonce, HOST_DOMAIN), at, policy)
    found.include(Verdict(report.checks))
    found.claim(report=dict(report.claims))
    _check_gpu(found, evidence, evidence.gpu_nonce(nonce, HOST_DOMAIN), at, policy)
    same = evidence.measurement == measurement
    found.check("release", same, "it runs another release than the node", "the node's")
    statement = read_statement(evidence.statement)
    words = statement.settings.in_words()
    whole = statement.settings.hash == statement.settings_hash and not statement.settings.vault_hosts
    found.check("settings", whole, "their hash is wrong, or its vaults are elsewhere too", words[1])
    found.claim(certificate=evidence.channel_key.hex(), sandbox=statement.settings.sandbox)
    found.claim(missing_layers=list(statement.missing_layers), started=statement.started)
    _check_code(found, statement, evidence.tee)
    _check_sandbox(found, evidence, statement, policy)
    return found.verdict()


def _check_sandbox(found: Examination, evidence: NodeEvidence, statement: Statement, policy: Policy) -> None:
    """A degraded sandbox may lose further layers later: it passes only if the policy accepts some missing layer."""
    accepted = policy.accept_missing_layers
    if accepted is None:
        accepted = UNPRIVILEGED if evidence.tee == "none" else ()
    missing = sorted(set(statement.missing_layers) - set(accepted))
    may_lose = statement.settings.sandbox == "degraded" and not accepted
    lacks = f"the node runs without {', '.join(missing)}" if missing else "it was started with --allow-degraded-sandbox"
    without = ", ".join(statement.missing_layers)
    shown = f"without {without}, accepted" if without else "complete"
    found.check("sandbox", not missing and not may_lose, lacks, shown)


def _check_freshness(found: Examination, statement: Statement, at: datetime) -> None:
    """The nonce proves that the evidence is new. This shows the node's clock, and how long it holds its key."""
    held_s = (statement.key_until_ms - statement.made_ms) / 1000
    ahead_s = statement.made_ms / 1000 - at.timestamp()
    found.claim(stated_ms=statement.made_ms, key_held_s=held_s)
    ahead = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"
    shown = f"channel key held for {held_s:.0f} s more; the node's clock is {ahead}"
    reason = f"the node says that it holds its channel key for {held_s:.0f} s"
    found.check("freshness", 0 < held_s <= LONGEST_HELD_S, reason, shown)


def _check_code(found: Examination, statement: Statement, tee: Tee) -> None:
    found.claim(code=statement.code)
    if statement.code == "release":
        found.passed("code", "only the release's files and packages run")
    elif tee == "none":
        found.skipped("code", "the node did not compare its code with a release", required=False)
    else:
        found.failed("code", "the node did not compare its packages with a release")
