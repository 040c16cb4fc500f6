"""Who waits for a vault is served in turn, and only so many may wait; what failed is said in our own words."""

from __future__ import annotations

import pytest

from cloister.controller.requests import MAX_RETRY_AFTER_S, Asked, VaultQueue, in_own_words
from cloister.errors import QueueFull
from cloister.messages.frontend import Ask
from cloister.messages.generation import Failed, SamplingParams


def ask(number: int) -> Asked:
    return Asked(Ask(number, "tenant", "partitioned", f"session-{number}", False, b"", SamplingParams()), b"")


class Vaults:
    """As many as are free."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.served: list[int] = []

    def serve(self, message: Asked) -> None:
        if not self.free:
            raise QueueFull("none")
        self.free -= 1
        self.served.append(message.request_id)


def test_first_come_first_served() -> None:
    vaults = Vaults(2)
    line = VaultQueue(3, vaults.serve)
    for number in range(1, 6):
        line.enter(ask(number))
    assert vaults.served == [1, 2]
    vaults.free = 1
    line.move()
    assert vaults.served == [1, 2, 3]
    vaults.free = 9
    line.move()
    assert vaults.served == [1, 2, 3, 4, 5]
    assert not len(line)


def test_nobody_overtakes_those_who_wait() -> None:
    vaults = Vaults(0)
    line = VaultQueue(9, vaults.serve)
    line.enter(ask(1))
    vaults.free = 1
    line.enter(ask(2))
    assert vaults.served == []
    line.move()
    assert vaults.served == [1]


def test_only_so_many_may_wait() -> None:
    line = VaultQueue(1, Vaults(0).serve)
    line.enter(ask(1))
    with pytest.raises(QueueFull):
        line.enter(ask(2))


def test_who_leaves_is_not_served() -> None:
    vaults = Vaults(0)
    line = VaultQueue(9, vaults.serve)
    for number in (1, 2, 3):
        line.enter(ask(number))
    assert line.leave(2) and not line.leave(2)
    assert 2 not in line and 3 in line
    vaults.free = 9
    line.move()
    assert vaults.served == [1, 3]


def test_a_gateway_leaves_with_its_own() -> None:
    vaults = Vaults(0)
    line = VaultQueue(9, vaults.serve)
    for number in (1 << 40 | 5, 2 << 40 | 5, 1 << 40 | 6):
        line.enter(ask(number))
    line.leave_all_of(1)
    vaults.free = 9
    line.move()
    assert vaults.served == [2 << 40 | 5]


def test_serving_one_may_free_another_place() -> None:
    """Ending a session while one is served calls `move` again: nobody is served twice."""
    vaults = Vaults(0)

    def serve(message: Asked) -> None:
        vaults.serve(message)
        line.move()

    line = VaultQueue(9, serve)
    for number in (1, 2, 3):
        line.enter(ask(number))
    vaults.free = 2
    line.move()
    assert vaults.served == [1, 2]
    assert 3 in line


@pytest.mark.parametrize("code", ["invalid_request", "queue_full", "vault_lost", "internal_error", "made_up", "secret"])
def test_nothing_that_the_service_wrote_goes_to_a_user(code: str) -> None:
    said = in_own_words(Failed(7, code, "secret", retry_after=10**9, param="secret"))
    assert said.request_id == 7 and said.retry_after <= MAX_RETRY_AFTER_S
    assert "secret" not in (said.code, said.message, said.param) and "secret" not in said.message


def test_a_failure_keeps_what_is_on_our_list() -> None:
    said = in_own_words(Failed(7, "queue_full", "Too many requests wait already.", retry_after=2, param="prompt"))
    assert (said.code, said.retry_after, said.param) == ("queue_full", 2, "prompt")
