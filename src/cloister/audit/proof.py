"""Attempts on evidence: an old answer, another's nonce, words that no hardware signed."""

import secrets
from base64 import urlsafe_b64encode
from datetime import UTC, datetime

from cloister.attest.evidence import NONCE_BYTES, Statement, read_statement
from cloister.attest.node import verify_node
from cloister.audit.finding import Finding, broken, held, not_tried, off
from cloister.audit.target import Target
from cloister.client.verification import ENDPOINT, ask_for_evidence
from cloister.errors import CloisterError

TOKEN_TYPE, TOKEN_BYTES = b"\x00\x02", 352  # RFC 9578 §6: blind RSA; nonce, challenge, key id, 2048 bits of signature
NO_TEE = "The node has no TEE (tee: none): there is only its word."


def nonce(target: Target) -> Finding:
    """Evidence for one nonce must not pass for another, nor be had without one."""
    mine, other = secrets.token_bytes(NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
    for body in ({}, {"nonce": ""}, {"nonce": "00"}, {"nonce": mine.hex() * 2}):
        if target.ask("POST", ENDPOINT, body, key="").status == 200:
            return broken("The node shows evidence without the client's nonce.")
    evidence = ask_for_evidence(target.address, mine, 0)
    at = datetime.now(UTC)
    if verify_node(evidence, other, at=at, policy=target.policy).passed:
        return broken("Evidence passes for a nonce that it was not made for.")
    if not verify_node(evidence, mine, at=at, policy=target.policy).passed:
        return not_tried("The node does not pass the policy: `cloister verify` says why.")
    return held("Evidence is for the client's nonce alone.")


def stated_by(target: Target) -> Statement:
    return read_statement(ask_for_evidence(target.address, secrets.token_bytes(NONCE_BYTES), 0).statement)


def settings_frozen(target: Target) -> Finding:
    """What evidence states must not change while the node runs, or with the client."""
    stated = [stated_by(target) for _ in range(3)]
    if len({(one.settings_hash, one.weights, one.model, one.started) for one in stated}) != 1:
        return broken("Two answers state different settings, weights or starts.")
    if any(one.settings.hash != one.settings_hash for one in stated):
        return broken("The hash of the settings is not theirs.")
    return held("Three answers state one hash of settings and one digest of weights.")


def weights(target: Target) -> Finding:
    """The model that answers is the one whose digest the user pinned."""
    if target.policy.weights is None:
        return not_tried("The policy names no weights; `cloister verify` shows the digest to pin.")
    if _fails(target, "weights digest"):
        return broken("The node serves other weights than the policy names.")
    return held("The weights' digest is one that the policy names.")


def firmware(target: Target) -> Finding:
    """ACPI tables, firmware and kernel are in the launch measurement, or a policy cannot name them."""
    tee = _tee(target)
    if tee == "none":
        return not_tried(NO_TEE)
    if _fails(target, "launch"):
        return broken("The launch of the machine is not one that the policy names.")
    return held("The launch measurement is one that the policy names.")


def patch_level(target: Target) -> Finding:
    """A floor for the versions that the hardware signed."""
    if _tee(target) == "none":
        return not_tried(NO_TEE)
    floors = [check for check in target.verification.verdict.checks if "tcb" in check.name.lower()]
    if not floors:
        return broken("No check compares the signed versions with a floor.")
    if bad := [check.name for check in floors if not check.holds]:
        return broken(f"{bad[0]} does not hold.")
    return held("The versions are those that the hardware signed, at or above the policy's floors.")


def vault_hosts(target: Target) -> Finding:
    """Prefill and decoding apart: where prompts leave the node, another machine must prove itself as the node does."""
    evidence = ask_for_evidence(target.address, secrets.token_bytes(NONCE_BYTES), 0)
    stated = read_statement(evidence.statement)
    if not stated.settings.vault_hosts:
        return off("Prompts are read and answered on one machine, through shared memory.")
    if len(evidence.vault_hosts) != len(stated.settings.vault_hosts):
        return broken("A machine that keeps vaults shows no evidence.")
    failed = [each for each in target.verification.verdict.broken if "vault host" in each.name]
    return broken(failed[0].reason) if failed else held("Each machine that keeps vaults proves itself for our nonce.")


def node_choice(target: Target) -> Finding:
    """A node of a cloud takes only tokens that name it; made-up tokens are refused."""
    if not stated_by(target).settings.cloud:
        return off("One node: its users chose it by its address, and nothing routes their requests.")
    token = urlsafe_b64encode(TOKEN_TYPE + secrets.token_bytes(TOKEN_BYTES)).decode()
    made_up = {"Authorization": f'PrivateToken token="{token}"'}
    body = {"model": target.model["id"], "prompt": "Say a word.", "max_tokens": 1}
    if target.ask("POST", "/v1/completions", body, key="", headers=made_up).status != 401:
        return broken("A made-up token pays for a request.")
    return held("The node follows the list with the stated hash; a made-up token is refused.")


def verifies(target: Target) -> Finding:
    """The whole walk: evidence, release, log, settings, by the given policy."""
    try:
        verdict = target.verification.verdict
    except CloisterError as wrong:
        return not_tried(wrong.message)
    if not verdict.passed:
        names = ", ".join(check.name for check in verdict.broken[:3])
        return broken(f"The node does not pass the policy: {names}.")
    if target.policy.allow_software_tee and _tee(target) == "none":
        return not_tried(f"It passes as a development node. {NO_TEE}")
    return held("Evidence, release and settings pass the policy.")


def _fails(target: Target, name: str) -> bool:
    """A check that was not made does not hold."""
    return not any(check.holds for check in target.verification.verdict.checks if check.name == name)


def _tee(target: Target) -> str:
    return str(target.verification.verdict.claims.get("tee", "none"))
