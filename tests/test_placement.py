"""Where processes compute, and what follows from it."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from cloister.config import EngineSettings
from cloister.placement import MPS_CLIENTS, Placement, Role

HOST, SHARED = Placement(), Placement.on_mps(8)


def test_without_mps_vaults_answer_their_own_links_and_outlive_the_service() -> None:
    assert not (HOST.uses_mps or HOST.vaults)
    roles: tuple[Role, ...] = get_args(Role)
    assert [role for role in roles if HOST.answers(role)] == ["vault"] and not any(map(HOST.yields, roles))


def test_under_mps_attention_processes_answer_and_vaults_yield_and_all_end_with_the_service() -> None:
    assert SHARED.uses_mps
    roles: tuple[Role, ...] = get_args(Role)
    assert [role for role in roles if SHARED.answers(role)] == ["attention"]
    assert [role for role in roles if SHARED.yields(role)] == ["vault"]


def test_clients_of_mps_are_no_more_than_it_allows() -> None:
    for processes in (1, 8, 16):
        assert 1 + processes + Placement.on_mps(processes).vaults == MPS_CLIENTS < 48


def test_neighbouring_slots_have_different_attention_processes_and_all_slots_are_some_process() -> None:
    found = [SHARED.process_of(slot) for slot in range(SHARED.vaults)]
    assert [process for process, _ in found[:9]] == [*range(8), 0] and len(set(found)) == SHARED.vaults
    for process in range(8):
        slots = SHARED.slots_of(process)
        assert [SHARED.process_of(slot) for slot in slots] == [(process, index) for index in range(len(slots))]
    for slot in (-1, SHARED.vaults):
        with pytest.raises(ValueError, match="no such link slot"):
            SHARED.process_of(slot)


def test_it_crosses_a_process_boundary_and_is_bounded_there() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(SHARED), type=Placement) == SHARED
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"attention_processes": 17}, Placement)


def test_a_setting_of_no_attention_process_is_refused() -> None:
    with pytest.raises(ValueError, match="attention_processes"):
        EngineSettings(attention_processes=0)
    assert EngineSettings(attention_processes=1).attention_processes == 1
