"""What the service says failed is said in our own words."""

from __future__ import annotations

import pytest

from cloister.controller.requests import MAX_RETRY_AFTER_S, sanitised
from cloister.messages.generation import Failed


@pytest.mark.parametrize("code", ["invalid_request", "queue_full", "vault_lost", "internal_error", "made_up", "secret"])
def test_nothing_that_the_service_wrote_goes_to_a_user(code: str) -> None:
    said = sanitised(Failed(7, code, "secret", retry_after=10**9, param="secret"))
    assert said.request_id == 7 and said.retry_after <= MAX_RETRY_AFTER_S
    assert "secret" not in (said.code, said.message, said.param) and "secret" not in said.message


def test_a_failure_keeps_what_is_on_our_list() -> None:
    said = sanitised(Failed(7, "queue_full", "Too many requests wait already.", retry_after=2, param="prompt"))
    assert (said.code, said.retry_after, said.param) == ("queue_full", 2, "prompt")
