"""Parties on two hosts: one of three is in a network namespace of its own. Its loss is one of the faults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.vault_host.host_process import why_no_namespaces

if TYPE_CHECKING:
    from tests.cloister_mpc.local import LocalParties


@pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces() or "-")
def test_parties_are_on_two_hosts(local: LocalParties) -> None:
    networks = [os.readlink(f"/proc/{local.party(rank).pid}/ns/net") for rank in range(3)]
    assert networks[0] == networks[1] != networks[2]


def test_an_engine_has_no_network_of_its_own(local: LocalParties) -> None:
    parties = {os.readlink(f"/proc/{local.party(rank).pid}/ns/net") for rank in range(3)}
    engines = {os.readlink(f"/proc/{local.child(rank, 'engine').pid}/ns/net") for rank in range(3)}
    assert len(engines) == 3 and not parties & engines
