"""Each attempt passes at a good node, and fails at one with the flaw that it looks for."""

from __future__ import annotations

import dataclasses

import httpx2
import pytest
from msgspec.structs import replace
from openai import APIError

from cloister.audit import line, proof, same_bits, surface, tenants
from cloister.audit.finding import Outcome
from cloister.audit.ledger import Attempt
from cloister.audit.target import Target
from cloister.checks import Check, Verdict
from cloister.checks import Outcome as CheckOutcome
from cloister.errors import CloisterError
from tests.audit.conftest import Audited
from tests.client.fake_node import MODEL

FLAWS: tuple[tuple[Attempt, str], ...] = (
    (same_bits.batching, "neighbours"),
    (same_bits.chunked_prefill, "neighbours"),
    (same_bits.prepacked_prefill, "neighbours"),
    (same_bits.reused_pages, "pages"),
    (tenants.prefix_caching, "usage"),
    (tenants.prefix_caching, "timing"),
    (tenants.views, "views"),
    (surface.priority, "field priority"),
    (surface.priority, "field nice"),
    (surface.speculation, "field draft_model"),
    (surface.placement, "field node"),
    (surface.misspelt, "field protecton"),
    (surface.misspelt, "levels"),
    (surface.misspelt, "headers"),
    (surface.privileged, "answers POST /flush_cache"),
    (surface.privileged, "answers GET /debug"),
    (surface.privileged, "answers GET /metrics"),
    (surface.profiling, "totals"),
    (surface.wrong_key, "keys"),
    (surface.errors_without_content, "echo"),
    (proof.nonce, "any nonce"),
    (proof.settings_frozen, "settings"),
)
GOOD = (*dict.fromkeys(attempt for attempt, _ in FLAWS), line.tls_ended, line.altered)
ABSENT = (surface.speculation, surface.placement)


@pytest.mark.parametrize("attempt", GOOD, ids=lambda each: each.__name__)
def test_at_a_good_node_nothing_succeeds(audited: Audited, attempt: Attempt) -> None:
    found = attempt(audited())
    assert found.outcome is (Outcome.OFF if attempt in ABSENT else Outcome.PASS), found.reason


@pytest.mark.parametrize(("attempt", "flaw"), FLAWS, ids=lambda each: getattr(each, "__name__", each))
def test_a_flaw_is_found(audited: Audited, attempt: Attempt, flaw: str) -> None:
    found = attempt(audited(flaw))
    assert found.outcome is Outcome.FAIL, found.reason


@pytest.mark.parametrize("attempt", [tenants.prefix_caching, tenants.views, surface.profiling])
def test_what_takes_two_tenants_is_no_pass_with_one(audited: Audited, attempt: Attempt) -> None:
    assert attempt(audited(other_key="")).outcome is Outcome.NOT_TRIED


@pytest.mark.parametrize(
    ("flaws", "outcome"), [(("beat",), Outcome.NOT_TRIED), (("beat", "field draft_model"), Outcome.FAIL)]
)
def test_where_vaults_may_guess_ahead_it_is_not_off(audited: Audited, flaws: tuple[str, ...], outcome: Outcome) -> None:
    assert surface.speculation(audited(*flaws)).outcome is outcome


def test_a_cache_that_is_off_is_no_pass(audited: Audited) -> None:
    assert tenants.prefix_caching(audited("no cache")).outcome is Outcome.OFF


def test_a_development_node_proves_no_machine(audited: Audited) -> None:
    target = audited()
    for attempt in (proof.firmware, proof.patch_level, proof.verifies):
        assert attempt(target).outcome is Outcome.NOT_TRIED


ALONE = (line.tls_ended, line.altered, proof.verifies, proof.node_choice, proof.vault_hosts)
"""Attempts that a test of their own below makes succeed."""
PROOFS = ((proof.firmware, "launch"), (proof.patch_level, "tcb floor"), (proof.weights, "weights digest"))


@pytest.mark.parametrize(("attempt", "name"), PROOFS, ids=lambda each: getattr(each, "__name__", each))
@pytest.mark.parametrize("outcome", [CheckOutcome.PASS, CheckOutcome.FAIL, None])
def test_what_hardware_or_a_policy_proves(
    audited: Audited, attempt: Attempt, name: str, outcome: CheckOutcome | None
) -> None:
    """`None`: the check was not made."""
    target = audited()
    target.policy = replace(target.policy, weights=("00" * 32,))
    checks = () if outcome is None else (Check(name, outcome),)
    verdict = Verdict(checks, {"tee": "sev-snp"})
    target.verification = dataclasses.replace(target.verification, verdict=verdict)
    wanted = Outcome.PASS if outcome is CheckOutcome.PASS else Outcome.FAIL
    assert attempt(target).outcome is wanted


def test_a_node_with_hardware_that_passes_the_policy_passes_the_audit(audited: Audited) -> None:
    target = audited()
    checks = tuple(Check(name, CheckOutcome.PASS) for name in ("launch", "tcb floor", "log inclusion"))
    target.verification = dataclasses.replace(target.verification, verdict=Verdict(checks, {"tee": "sev-snp"}))
    assert {attempt(target).outcome for attempt in (proof.firmware, proof.patch_level, proof.verifies)} == {
        Outcome.PASS
    }


@pytest.mark.parametrize(("flaw", "outcome"), [("", Outcome.PASS), ("tokens", Outcome.FAIL)])
def test_a_cloud_s_node_takes_no_made_up_token(audited: Audited, flaw: str, outcome: Outcome) -> None:
    assert proof.node_choice(audited("cloud", flaw)).outcome is outcome


def test_a_machine_with_vaults_must_prove_itself(audited: Audited) -> None:
    assert proof.vault_hosts(audited("vault host")).outcome is Outcome.FAIL


def in_the_clear(passing: line.Line, target: Target, prompt: str) -> str:
    """A client without a channel."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    url = f"http://127.0.0.1:{passing.port}/v1/completions"
    httpx2.post(url, json=body, headers={"Authorization": f"Bearer {target.key}"})
    return ""


def test_a_client_that_gives_up_its_channel_is_found(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed, target = line._ask_through, audited()

    def falls_back(passing: line.Line, target: Target, prompt: str) -> str:
        try:
            return sealed(passing, target, prompt)
        except (APIError, CloisterError):
            return in_the_clear(passing, target, prompt)

    monkeypatch.setattr(line, "_ask_through", falls_back)
    assert line.altered(target).outcome is Outcome.FAIL
    monkeypatch.setattr(line, "_ask_through", in_the_clear)
    assert line.tls_ended(target).outcome is Outcome.FAIL


def test_a_node_that_does_not_pass_the_policy_fails(audited: Audited) -> None:
    target = audited()
    target.policy = replace(target.policy, allow_software_tee=False)
    assert proof.verifies(target).outcome is Outcome.FAIL


def test_one_node_chooses_nothing(audited: Audited) -> None:
    target = audited()
    assert proof.node_choice(target).outcome is proof.vault_hosts(target).outcome is Outcome.OFF


def test_a_request_that_can_be_changed_is_seen(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly = line.Line.__init__
    monkeypatch.setattr(line.Line, "__init__", lambda self, address, *, flip: plainly(self, address, flip=False))
    assert line.altered(audited()).outcome is Outcome.FAIL
