from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controller.fakes import House


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """One service, fresh vaults on demand (none spare), one gateway."""
    house = await House.build(spare_vaults=0)
    yield house
    house.close()
