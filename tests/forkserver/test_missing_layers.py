"""Which layers evidence names as missing where processes compute on a GPU."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from cloister.compute.base import Device
from cloister.forkserver.child import without_layers
from cloister.placement import Placement
from cloister.process.sandbox.layers import BEST_EFFORT, ON_A_GPU, Layer


@pytest.mark.parametrize(
    ("files", "placement", "missing"),
    [
        ((), Placement(), set()),
        (("/dev/a",), Placement(), {Layer.NO_DEVICES}),
        (("/dev/a",), Placement.on_mps(1), {*ON_A_GPU}),
        (("/dev/a",), Placement.on_mps(8), {*ON_A_GPU}),
    ],
)
def test_what_a_device_takes_away_is_named(files: tuple[str, ...], placement: Placement, missing: set[Layer]) -> None:
    device = MagicMock(spec=Device, files=files, placement=placement)
    assert without_layers(device) == missing <= BEST_EFFORT
