from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.mpc.local import LocalParties


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalParties]:
    """Three parties with a small model, each its own process. What a test breaks, the parties mend by themselves."""
    pytest.importorskip("spu", reason="SPU is not installed: pip install '.[mpc]'")
    from tests.mpc.local import LocalParties

    parties = LocalParties(tmp_path_factory.mktemp("local"))
    try:
        asyncio.run(parties.deal())
        yield parties
    finally:
        parties.close()
