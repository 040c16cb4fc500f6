"""Which first tokens are public: by registration, by count with the detector's veto, or by the paper's rule."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cloister.config import ControllerSettings
from cloister.controller import sharing as module
from cloister.controller.sharing import Sharing, shared_secret
from cloister.messages.controller_frontend import KeyEntry
from cloister.messages.controller_service import GeneratePrompt
from cloister.messages.types import SamplingParams
from cloister.prefix.public_pages import Template

PARAMS = SamplingParams(max_tokens=8)
PROMPT = tuple(range(10))
DIGEST = "0" * 64


def sharing(policy: str = "counted", **settings: object) -> Sharing:
    given = {"shared_policy": policy, "share_epsilon": 1e9, "share_threshold": 2, "detector": True} | settings
    return Sharing(ControllerSettings.model_validate(given), lambda: 2, bytes(32))


def order(tenant: str, prompt: tuple[int, ...] = PROMPT, public: int = 0) -> GeneratePrompt:
    return GeneratePrompt(1, tenant, prompt, PARAMS, public)


def spans(made: Sharing, tenants: str, passed: int = 10) -> list[int]:
    return [made.label(order(tenant), passed).public_tokens for tenant in tenants]


def test_counted_pages_are_public_from_the_account_on_that_passes_the_threshold() -> None:
    assert spans(sharing(), "aabbcd") == [0, 0, 0, 0, 10, 10]


def test_keys_of_one_account_are_one_vote() -> None:
    made = sharing()
    made.admit([KeyEntry(bytes(32), tenant, "acme" if tenant in "abcd" else "") for tenant in "abcdef"])
    assert spans(made, "abcdef") == [0, 0, 0, 0, 0, 10]


def test_a_tenant_is_no_member_of_a_group_that_has_its_name() -> None:
    made = sharing("registered")
    made.admit([KeyEntry(bytes(32), "acme"), KeyEntry(bytes(32), "bob", "acme")])
    made.register([Template("one", ("acme",), DIGEST, PROMPT)])
    assert [made.label(order(tenant), 0).public_tokens for tenant in ("acme", "bob")] == [0, 10]


def test_the_detector_has_a_veto_and_gives_no_permit() -> None:
    made = sharing()
    assert spans(made, "abcdef", passed=5) == [0, 0, 4, 4, 4, 4], "whole pages before what looks private"
    assert spans(made, "g", passed=0) == [0]
    assert sharing().label(order("a"), 10).public_tokens == 0, "what the detector passes is private until many send it"


def test_registration_needs_neither_count_nor_detector_and_names_its_accounts() -> None:
    for policy in ("registered", "counted"):
        made = sharing(policy)
        made.register([Template("one", ("a",), DIGEST, PROMPT[:6])])
        label = made.label(order("a"), 0)
        assert (label.public_tokens, label.registered) == (6, 6)
        assert made.label(order("b"), 0).public_tokens == 0
    counted = sharing()
    counted.register([Template("one", ("all",), DIGEST, PROMPT[:6])])
    assert spans(counted, "abcd") == [6, 6, 10, 10]
    assert spans(sharing("registered"), "abcdef") == [0] * 6


@pytest.mark.parametrize("policy", ["counted", "registered"])
def test_a_mark_registers_nothing(policy: str) -> None:
    """Else an account that marks its guess would find what another account marked."""
    made = sharing(policy)
    made.admit([KeyEntry(bytes(32), tenant, "acme" if tenant in "ab" else "") for tenant in "abc"])
    for tenant in "ababc":
        assert made.label(order(tenant, public=4), 0).public_tokens == 0


def test_a_label_waits_for_the_detector_only_where_it_has_a_veto() -> None:
    assert sharing().waits and not sharing("registered").waits
    assert not sharing(detector=False).waits and not sharing("partition").labels


def test_noise_survives_a_restart_and_its_secret_is_private(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "sharing.key"
    secret = shared_secret(file)
    assert secret == shared_secret(file) and len(secret) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    assert shared_secret(file) != secret, "a secret that others can read is not used"


def test_a_policy_that_counts_nothing_needs_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "shared_secret", lambda: pytest.fail("a file was written for nothing"))
    Sharing(ControllerSettings(shared_policy="partition"), lambda: 2)
