from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloister.kernels import batch


@pytest.fixture(scope="module", autouse=True)
def blocks_of_four() -> Iterator[None]:
    """Blocks of four positions instead of sixteen: short sequences then cross many a block's end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "BLOCK_TOKENS", 4)
        yield
