from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.cloister_mpc.quick import compile_quickly as compile_quickly
from tests.vault_host.host_process import another_network, why_no_namespaces

if TYPE_CHECKING:
    from tests.cloister_mpc.local import LocalParties


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalParties]:
    """Three parties with a small model, each its own process. What a test breaks, the parties mend by themselves.

    Where this machine can have two networks, the third party is in one of its own, at the other end of a cable.
    """
    pytest.importorskip("spu", reason="SPU is not installed: make mpc")
    from tests.cloister_mpc.local import LocalParties

    with ExitStack() as stack:
        places: dict[str, Any] = {}
        if not why_no_namespaces():
            name, there = stack.enter_context(another_network())
            here = f"{there.rsplit('.', 1)[0]}.1"
            places = {"hosts": (here, here, there), "before": {2: ["ip", "netns", "exec", name]}}
        parties = LocalParties(tmp_path_factory.mktemp("local"), **places)
        stack.callback(parties.close)
        asyncio.run(parties.deal())
        yield parties
