from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloister.compute import layout


@pytest.fixture(scope="module", autouse=True)
def blocks_of_four() -> Iterator[None]:
    """Blocks of four positions instead of sixteen: short sequences then cross many a block's end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "BLOCK_TOKENS", 4)
        yield
