"""The rules of the cores, against a model of what service and vaults do with the commands they get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import ANY, MagicMock

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cloister.controller.core_lease import (
    BESIDE_TOKENS,
    PIECE_TOKENS,
    ROUND_TOKENS,
    Command,
    CoreLease,
    Grant,
    LeaseKeeper,
)
from cloister.errors import ProtocolError
from cloister.fairness import CREDIT, LEAST_TOKENS, ActiveTenants
from cloister.messages.controller_service import Pause, Resume
from cloister.messages.controller_vault import LeaseCores
from tests.examples import examples

CORES = 3


class Node(RuleBasedStateMachine):
    """The service as it really behaves: after Resume it makes one step at least before a Pause counts."""

    def __init__(self) -> None:
        super().__init__()
        self.lease = CoreLease(CORES, lambda: self.size)
        self.up = False
        self.may_compute = False  # between its start or Resume, and Paused
        self.pause_asked = False
        self.owes_step = False
        self.holders: dict[int, int] = {}
        self.waiting: list[int] = []
        self.alive = set(range(6))
        self.spent_since_step = 0
        self.tokens: dict[int, int] = {}
        self.size = ROUND_TOKENS

    def obey(self, commands: list[Command]) -> None:
        over = self.spent_since_step >= self.size
        for command in commands:
            match command:
                case Grant(vault=vault, cores=cores, tokens=tokens):
                    assert vault == self.waiting[0], "first come, first served"
                    assert not (self.up and self.may_compute), "a vault was let in while the service computes"
                    self.waiting.remove(vault)
                    self.holders[vault] = cores
                    if self.up:
                        assert not over, "the service waits longer than a round"
                        self.spent_since_step += PIECE_TOKENS + tokens
                    assert tokens <= min(self.tokens[vault], max(self.size * cores // CORES, LEAST_TOKENS, CREDIT))
                case Pause():
                    assert self.up and not self.pause_asked
                    self.pause_asked = True
                case Resume():
                    assert self.up and not self.may_compute
                    self.may_compute = self.owes_step = True
                    self.pause_asked = False
                    self.spent_since_step, over = 0, False

    @rule(size=st.sampled_from([1, 8, 64, ROUND_TOKENS]))
    def somebody_comes_or_goes(self, size: int) -> None:
        self.size = size

    @rule(vault=st.integers(0, 5), tokens=st.sampled_from([1, 64, 511, 512, 2000]))
    def a_vault_wants_it(self, vault: int, tokens: int) -> None:
        if vault in self.waiting or vault in self.holders:
            with pytest.raises(ProtocolError):
                self.lease.want(vault, tokens)
            return
        self.waiting.append(vault)
        self.tokens[vault] = tokens
        self.obey(self.lease.want(vault, tokens))

    @rule(vault=st.integers(0, 5))
    def a_vault_is_done(self, vault: int) -> None:
        if vault not in self.holders:
            with pytest.raises(ProtocolError):
                self.lease.done(vault)
            return
        del self.holders[vault]
        self.obey(self.lease.done(vault))

    @rule(vault=st.integers(0, 5))
    def a_vault_dies(self, vault: int) -> None:
        self.holders.pop(vault, None)
        if vault in self.waiting:
            self.waiting.remove(vault)
        self.obey(self.lease.gone(vault))

    @precondition(lambda self: not self.up)
    @rule()
    def the_service_comes(self) -> None:
        self.up = True
        self.pause_asked = self.owes_step = False
        self.spent_since_step = 0
        busy = bool(self.holders)
        self.may_compute = False  # it hears of no work before what this call sends
        commands = self.lease.service_up()
        self.obey(commands)
        if busy:
            assert commands == [Pause()]
        else:
            self.may_compute = True

    @precondition(lambda self: self.up)
    @rule()
    def the_service_dies(self) -> None:
        self.up = self.may_compute = False
        self.obey(self.lease.service_gone())

    @precondition(lambda self: self.up and self.may_compute)
    @rule()
    def the_service_steps(self) -> None:
        self.owes_step = False

    @precondition(lambda self: self.up and self.pause_asked)
    @rule()
    def the_service_makes_way(self) -> None:
        if self.lease.service != "pausing":
            with pytest.raises(ProtocolError):
                self.lease.paused()
            return
        self.owes_step = self.may_compute = False
        self.obey(self.lease.paused())

    @invariant()
    def never_more_than_there_are(self) -> None:
        assert all(self.holders.values()) and sum(self.holders.values()) <= CORES
        assert self.lease.holders == self.holders
        assert not (self.holders and self.up and self.may_compute)

    @invariant()
    def somebody_can_always_go_on(self) -> None:
        """Whoever waits, waits for a holder's end or for a pause that was asked for: nothing else."""
        if self.waiting:
            assert self.holders or (self.up and self.pause_asked and self.lease.service == "pausing")
            if not self.up:
                assert sum(self.holders.values()) == CORES, "a core is idle though somebody waits"
        if self.up and not self.may_compute and not self.holders:
            assert self.lease.service == "pausing", "a paused service is forgotten"

    def teardown(self) -> None:
        """Everyone who asked is served in the end, and the service is left computing."""
        for _ in range(50):
            if self.holders:
                self.a_vault_is_done(next(iter(self.holders)))
            elif self.up and self.lease.service == "pausing":
                self.the_service_makes_way()
        assert not self.waiting and not self.holders
        assert not self.up or self.lease.service == "computing"


TestFloor = Node.TestCase
TestFloor.settings = examples(80, stateful_step_count=40)


def test_small_pieces_share_one_round_and_large_ones_do_not() -> None:
    lease = CoreLease(1)
    lease.service_up()
    piece = 128 - PIECE_TOKENS
    assert lease.want(1, piece) == [Pause()]
    for vault in range(2, 7):
        assert lease.want(vault, piece) == []
    assert lease.paused() == [Grant(1, 1, piece)]
    for vault in range(1, 4):
        assert lease.done(vault) == [Grant(vault + 1, 1, piece)]
    assert lease.done(4) == [Resume(ANY), Pause()]  # 512 tokens' worth of work: now the service has its step
    assert lease.paused() == [Grant(5, 1, piece)]
    assert lease.done(5) == [Grant(6, 1, piece)]
    assert lease.done(6) == [Resume(ANY)]


def test_one_vault_has_all_cores_and_several_divide_them() -> None:
    lease = CoreLease(4)
    assert lease.want(1, 64) == [Grant(1, 4, 64)]
    assert lease.want(2, 64) == lease.want(3, 64) == []
    assert lease.done(1) == [Grant(2, 2, 64), Grant(3, 2, 64)]
    assert [lease.want(vault, 64) for vault in range(4, 9)] == [[]] * 5
    assert lease.done(2) == [Grant(4, 1, 64), Grant(5, 1, 64)]
    assert lease.gone(3) == [Grant(6, 1, 64), Grant(7, 1, 64)]
    assert lease.done(7) == [Grant(8, 1, 64)]
    assert lease.done(8) == []


def test_vaults_that_compute_together_have_one_rounds_tokens_between_them() -> None:
    lease = CoreLease(2)
    assert lease.want(0, 4000) == [Grant(0, 2, ROUND_TOKENS)]
    assert lease.want(1, 4000) == lease.want(2, 4000) == []
    assert lease.done(0) == [Grant(1, 1, ROUND_TOKENS // 2), Grant(2, 1, ROUND_TOKENS // 2)]


def beside(cores: int = CORES) -> CoreLease:
    lease = CoreLease(cores)
    lease.beside = True
    assert lease.service_up() == []
    return lease


def test_beside_the_service_vaults_compute_uncut_and_nobody_pauses() -> None:
    lease = beside()
    assert [lease.want(vault, 600) for vault in range(3)] == [[Grant(vault, 1, 600)] for vault in range(3)]
    assert lease.want(3, 600) == [], "there are three cores"
    assert lease.done(1) == [Grant(3, 1, 600)] and lease.service == "computing"
    assert lease.service_gone() == lease.service_up() == []


def test_beside_the_service_no_more_tokens_are_under_way_than_fill_the_device() -> None:
    lease = beside(8)
    assert lease.want(0, BESIDE_TOKENS + 1) == [Grant(0, 1, BESIDE_TOKENS + 1)], "one is always let in"
    assert lease.want(1, 1) == []
    assert lease.done(0) == [Grant(1, 1, 1)]
    assert lease.want(2, BESIDE_TOKENS - 1) == [Grant(2, 1, BESIDE_TOKENS - 1)]
    assert lease.want(3, 1) == [] and lease.gone(2) == [Grant(3, 1, 1)]


async def test_a_keeper_lets_in_as_many_vaults_as_cores_beside_the_service() -> None:
    keeper = LeaseKeeper(3, 60, 60)
    keeper.compute_beside()
    vaults = [MagicMock() for _ in range(4)]
    for number, vault in enumerate(vaults):
        keeper.want(number, vault, 64, "tenant")
    assert [vault.send.call_count for vault in vaults] == [1, 1, 1, 0]
    for number in range(4):
        keeper.gone(number)


def test_beside_the_service_turns_go_by_tenant() -> None:
    lease = beside(1)
    assert lease.want(1, 500, "greedy") == [Grant(1, 1, 500)]
    assert lease.want(2, 500, "greedy") == lease.want(3, 64, "modest") == []
    assert lease.done(1) == [Grant(3, 1, 64)]
    assert lease.done(3) == [Grant(2, 1, 500)]


def test_the_service_waits_for_the_last_holder_and_nobody_joins_a_round_that_is_over() -> None:
    lease = CoreLease(2)
    lease.service_up()
    for vault in (1, 2, 3):
        lease.want(vault, 400)
    assert lease.paused() == [Grant(1, 1, 256), Grant(2, 1, 256)]
    assert lease.done(1) == []
    assert lease.done(2) == [Resume(ANY), Pause()]


def test_a_round_is_short_while_another_tenant_is_here_and_long_for_one_alone() -> None:
    """So another's next token waits for a small piece of a long prompt, never for a large one."""
    size = 8
    lease = CoreLease(1, lambda: size)
    lease.service_up()
    lease.want(1, 7000, "floods")
    assert lease.paused() == [Grant(1, 1, 8)]
    assert lease.want(2, CREDIT, "modest") == []
    assert lease.done(1) == [Resume(ANY), Pause()]  # the service has a step after each piece
    assert lease.want(1, 6992, "floods") == []
    assert lease.paused() == [Grant(2, 1, CREDIT)]  # a newcomer's short prompt is not cut up
    assert lease.want(3, 6000, "floods") == []
    assert lease.done(2) == [Resume(ANY), Pause()]
    assert lease.paused() == [Grant(1, 1, 8)]
    size = 512
    assert lease.done(1) == [Grant(3, 1, 512)]


def test_the_end_of_a_long_prompt_is_no_newcomers_short_one() -> None:
    """Else whoever decodes beside it waits for its last tokens as for one long step."""
    lease = CoreLease(1, lambda: 8)
    lease.service_up()
    lease.want(1, CREDIT + 8, "long")
    assert lease.paused() == [Grant(1, 1, 8)]
    for left in range(CREDIT, 0, -8):
        lease.done(1)
        lease.want(1, left, "long")
        assert lease.paused() == [Grant(1, 1, 8)]
    lease.done(1)
    lease.want(1, CREDIT, "long")
    assert lease.paused() == [Grant(1, 1, CREDIT)], "its next prompt is short"


@pytest.mark.parametrize(("charged", "turn"), [({}, 2), ({"b": 1000, "stranger": 5}, 3)])
def test_what_the_service_computed_for_a_tenant_counts_in_its_turns_at_the_vaults(charged: dict[str, int], turn: int):
    """And the other way round: who keeps both busy has one share, not two."""
    lease = CoreLease(1, lambda: 8)
    lease.service_up()
    lease.want(1, CREDIT, "a")
    assert lease.paused() == [Grant(1, 1, CREDIT)]
    assert lease.want(2, 4, "b") == []
    assert lease.done(1) == [Resume({"a": CREDIT + PIECE_TOKENS}), Pause()]
    assert lease.want(3, 4, "a") == []
    assert lease.paused(charged) == [Grant(turn, 1, 4)]


def test_a_tenant_does_not_wait_behind_all_that_another_wants() -> None:
    """Thirty-two vaults of one tenant want a long prefill each; the next turn is the other's all the same."""
    lease = CoreLease(1)
    assert lease.want(0, 512, "floods") == [Grant(0, 1, 512)]
    for vault in range(1, 32):
        assert lease.want(vault, 512, "floods") == []
    assert lease.want(100, 8, "modest") == []
    assert lease.done(0) == [Grant(100, 1, 8)]
    assert lease.done(100) == [Grant(1, 1, 512)]
    assert lease.want(100, 8, "modest") == []  # it has had less: its next piece comes before the other's
    assert lease.done(1) == [Grant(100, 1, 8)]


def test_who_comes_and_goes_saves_little_up() -> None:
    lease = CoreLease(1)
    lease.want(0, 512, "works")
    for vault in range(1, 5):
        lease.want(vault, 512, "works")
    for vault in range(4):
        assert lease.done(vault) == [Grant(vault + 1, 1, 512)]
    for vault in (10, 11):
        lease.want(vault, 512, "late")
    lease.want(5, 512, "works")
    turns = [lease.done(4)]
    for _ in range(2):
        turns.append(lease.done(turns[-1][0].vault))  # type: ignore[union-attr]
    assert [grant.vault for [grant] in turns] == [10, 5, 11]  # type: ignore[union-attr]


class Told:
    """A process that notes what it is told."""

    def __init__(self) -> None:
        self.last: msgspec.Struct | None = None

    def send(self, message: msgspec.Struct) -> None:
        self.last = message

    def abort(self) -> None:
        raise AssertionError("nobody is late")


@pytest.fixture
async def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes on when it is told to."""
    time = [1000.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time[0])

    def go_on(seconds: float) -> None:
        time[0] += seconds

    return go_on


QUIET_S = 0.024
"""A step of one token, of the service's."""


async def test_at_whatever_place_of_a_long_prompt_a_piece_and_a_step_last_three_quiet_steps_at_most(
    now: Callable[[float], None],
) -> None:
    """A vault prefills beside another tenant whose answer the service decodes, on a machine that computes slowly."""
    company, service, vault = ActiveTenants(), Told(), Told()
    company.arrive("answers")
    keeper = LeaseKeeper(2, 10, 10, company)
    keeper.service_up(service)
    position, gaps = 0, []
    keeper.want(1, vault, 7000, "asks")
    keeper.paused()
    while position < 7000:
        assert isinstance(vault.last, LeaseCores)
        piece = 0.0095 + vault.last.tokens * (0.0145 + 1e-6 * position)
        gaps.append(piece + QUIET_S)
        position += vault.last.tokens
        now(piece)
        keeper.done(1)
        keeper.want(1, vault, 7001 - position, "asks")
        now(QUIET_S)
        keeper.paused({"answers": 2})
    gaps.sort()
    assert gaps[int(0.95 * len(gaps))] <= 2.8 * QUIET_S
    assert len(gaps) < 6500, "where there is time for more than one token, a piece has more"


async def test_a_service_that_had_nothing_to_do_teaches_nothing(now: Callable[[float], None]) -> None:
    company, service, vault = ActiveTenants(), Told(), Told()
    company.arrive("answers")
    keeper = LeaseKeeper(2, 10, 10, company)
    keeper.service_up(service)
    for _ in range(20):
        keeper.want(1, vault, 400, "asks")
        keeper.paused({"answers": 2})
        now(0.0095 + vault.last.tokens * 0.0145)  # type: ignore[union-attr]
        keeper.done(1)
        now(60)  # nobody asks for anything; then one token is generated
    assert vault.last.tokens <= 2  # type: ignore[union-attr]
