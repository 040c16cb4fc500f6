"""What a child does before it is sealed."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from cloister.forkserver.child import waits_for_others


@pytest.mark.parametrize(
    ("role", "attention_processes", "waits"),
    [("attention", 8, True), ("vault", 8, False), ("vault", 0, True), ("service", 8, False), ("service", 0, False)],
)
def test_who_answers_for_prompts_opens_the_device_as_one_that_waits(
    role: str, attention_processes: int, waits: bool
) -> None:
    assert waits_for_others(role, MagicMock(attention_processes=attention_processes)) is waits
