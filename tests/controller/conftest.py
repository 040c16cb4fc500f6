from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controller.fakes import Node


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """One service, fresh vaults on demand (none spare), one gateway; at `shared` the detector's word counts."""
    node = await Node.build(spare_vaults=0, share_threshold=0, share_epsilon=1e9, detector=True)
    yield node
    node.close()
