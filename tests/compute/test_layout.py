"""How positions fall into blocks: every segment begins one of its own."""

from __future__ import annotations

import pytest

from cloister.compute.layout import Layout


@pytest.mark.parametrize(
    ("layout", "positions", "blocks"),
    [
        (Layout(prompt=40), 40, 3),
        (Layout(prompt=40), 41, 4),
        (Layout(prompt=40), 33, 3),
        (Layout(prompt=20, public=16), 16, 1),
        (Layout(prompt=20, public=16), 20, 2),
        (Layout(prompt=20, public=17), 20, 3),
        (Layout(prompt=20, public=17), 10, 1),
        (Layout(prompt=20, public=20), 21, 3),
        (Layout(prompt=0), 17, 2),
        (Layout(prompt=2**30), 0, 0),
    ],
)
def test_so_many_positions_take_so_many_blocks(layout: Layout, positions: int, blocks: int) -> None:
    assert layout.blocks(positions) == blocks
