"""Which layers evidence names as missing where processes compute on a GPU."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from cloister.compute.base import Device
from cloister.forkserver.child import without_layers
from cloister.process.sandbox.layers import BEST_EFFORT, Layer


@pytest.mark.parametrize(
    ("files", "shared", "attention", "missing"),
    [
        ((), False, 0, set()),
        (("/dev/a",), False, 0, {Layer.NO_DEVICES}),
        (("/dev/a",), True, 0, {Layer.NO_DEVICES, Layer.GPU_IN_TURNS}),
        (("/dev/a",), True, 1, {Layer.NO_DEVICES, Layer.GPU_IN_TURNS, Layer.OWN_ATTENTION}),
    ],
)
def test_what_a_device_takes_away_is_named(
    files: tuple[str, ...], shared: bool, attention: int, missing: set[Layer]
) -> None:
    device = MagicMock(spec=Device, files=files, shared=shared, attention_processes=attention)
    assert without_layers(device) == missing <= BEST_EFFORT
