from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.mpc.trio import Trio


@pytest.fixture(scope="session")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three parties with a small model, each its own process. What a test breaks, the parties mend by themselves."""
    pytest.importorskip("spu", reason="SPU is not installed: pip install '.[mpc]'")
    from tests.mpc.trio import Trio

    parties = Trio(tmp_path_factory.mktemp("trio"))
    try:
        asyncio.run(parties.deal())
        yield parties
    finally:
        parties.close()
