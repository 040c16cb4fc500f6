"""Who waits for a vault is served in turn, tenant by tenant, and only so much may wait."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cloister.controller.vault_side import MAX_BYTES_PER_TENANT, PendingRequest, VaultQueue
from cloister.errors import QueueFull
from cloister.messages.controller_frontend import Ask
from cloister.messages.types import ExtraAnswer, SamplingParams


def ask(number: int, tenant: str = "tenant", prompt: bytes = b"", group: str = "") -> PendingRequest:
    sent = Ask(number, tenant, "partitioned", f"session-{number}", False, b"", SamplingParams(), group)
    return PendingRequest(sent, prompt)


class Vaults:
    """As many as are free."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.served: list[int] = []
        self.of: list[str] = []

    def serve(self, message: PendingRequest) -> None:
        if not self.free:
            raise QueueFull("none")
        self.free -= 1
        self.served.append(next(iter(message.params)))
        self.of.append(message.payer)

    def queue(self, most: int) -> VaultQueue:
        return VaultQueue(most, self.serve, self.of.count)


def test_first_come_first_served() -> None:
    vaults = Vaults(2)
    line = vaults.queue(6)
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
    line = vaults.queue(9)
    line.enter(ask(1))
    vaults.free = 1
    line.enter(ask(2))
    assert vaults.served == [1]


def test_a_tenant_does_not_wait_behind_all_that_another_asked_for() -> None:
    vaults = Vaults(2)
    line = vaults.queue(100)
    for number in range(40):
        line.enter(ask(number, "floods"))
    line.enter(ask(100, "modest"))
    vaults.free = 1
    line.move()
    assert vaults.served == [0, 1, 100]
    line.enter(ask(101, "modest"))
    vaults.free = 3
    line.move()
    assert vaults.of[3:] == ["modest", "floods", "modest"] or vaults.of[3:] == ["modest", "floods", "floods"]


def test_who_has_its_share_of_vaults_keeps_nobody_else_waiting() -> None:
    vaults = Vaults(9)

    def serve(message: PendingRequest) -> None:
        if message.payer == "floods" and vaults.of.count("floods") >= 2:
            raise QueueFull("your share")
        vaults.serve(message)

    line = VaultQueue(100, serve, vaults.of.count)
    for number in range(5):
        line.enter(ask(number, "floods"))
    line.enter(ask(9, "modest"))
    assert vaults.served == [0, 1, 9] and len(line) == 3


def test_a_trust_group_has_one_turn() -> None:
    vaults = Vaults(0)
    line = vaults.queue(100)
    for number in range(4):
        line.enter(ask(number, f"member-{number}", group="them"))
    line.enter(ask(9, "alone"))
    vaults.free = 2
    line.move()
    assert vaults.served == [0, 9]


def test_what_a_tenant_leaves_waiting_is_bounded_in_number_and_bytes() -> None:
    line = Vaults(0).queue(8)
    for number in range(4):
        line.enter(ask(number, "floods"))
    with pytest.raises(QueueFull, match="your requests"):
        line.enter(ask(4, "floods"))
    line.enter(ask(5, "modest", b"x" * (MAX_BYTES_PER_TENANT - 10)))
    with pytest.raises(QueueFull, match="your requests"):
        line.enter(ask(6, "modest", b"x" * 11))
    line.enter(ask(7, "another", b"x" * 11))
    assert len(line) == 6
    line.leave(5)
    line.enter(ask(8, "modest", b"x" * 11))


def test_who_pays_with_tokens_leaves_no_more_waiting_than_a_tenant_does() -> None:
    line = Vaults(0).queue(8)
    for number in range(4):
        line.enter(ask(number, f"token-{number:032x}"))
    with pytest.raises(QueueFull, match="your requests"):
        line.enter(ask(4, f"token-{4:032x}"))
    line.enter(ask(5, "modest"))


def test_only_so_many_may_wait() -> None:
    line = Vaults(0).queue(1)
    line.enter(ask(1))
    with pytest.raises(QueueFull):
        line.enter(ask(2))


def test_who_leaves_is_not_served() -> None:
    vaults = Vaults(0)
    line = vaults.queue(9)
    for number in (1, 2, 3):
        line.enter(ask(number))
    assert line.leave(2) and not line.leave(2)
    assert 2 not in line and 3 in line
    vaults.free = 9
    line.move()
    assert vaults.served == [1, 3]


def test_a_gateway_leaves_with_its_own() -> None:
    vaults = Vaults(0)
    line = vaults.queue(9)
    for number in (1 << 40 | 5, 2 << 40 | 5, 1 << 40 | 6):
        line.enter(ask(number))
    line.leave_all_of(1)
    vaults.free = 9
    line.move()
    assert vaults.served == [2 << 40 | 5]


def test_serving_one_may_free_another_place() -> None:
    """Ending a session while one is served calls `move` again: nobody is served twice."""
    vaults = Vaults(0)

    def serve(message: PendingRequest) -> None:
        vaults.serve(message)
        line.move()

    line = VaultQueue(9, serve, vaults.of.count)
    for number in (1, 2, 3):
        line.enter(ask(number))
    vaults.free = 2
    line.move()
    assert vaults.served == [1, 2]
    assert 3 in line


def answers(number: int, count: int, prompt: bytes = b"prompt") -> PendingRequest:
    also = tuple(ExtraAnswer(number + more, seed=more) for more in range(1, count))
    return PendingRequest(replace(ask(number, prompt=prompt).ask, also=also), prompt)


def test_a_prompt_for_many_answers_is_held_once() -> None:
    vaults = Vaults(0)
    line = vaults.queue(1000)
    asked = answers(1, 100, b"x" * (MAX_BYTES_PER_TENANT // 2))
    line.enter(asked)
    line.enter(answers(200, 2, b"x" * (MAX_BYTES_PER_TENANT // 4)))
    assert len(line) == 102
    assert line.leave(1) and line.leave(50) and not line.leave(50) and 50 not in line
    assigned = asked.assignment
    assert assigned.request_id == 2 and assigned.params.seed == 1 and len(assigned.also) == 97
    assert assigned.prompt is asked.prompt
    vaults.free = 1
    line.move()
    assert vaults.served == [2] and len(line) == 2
    line.leave_all_of(0)
    assert not len(line)
