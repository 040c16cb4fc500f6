"""Which layers evidence names as missing where processes compute on a GPU."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from cloister.compute.base import Device
from cloister.forkserver.child import without_layers
from cloister.process.sandbox.layers import BEST_EFFORT, ON_A_GPU, Layer


@pytest.mark.parametrize(
    ("files", "shared", "attention", "apart", "missing"),
    [
        ((), False, 0, True, set()),
        (("/dev/a",), False, 0, True, {Layer.NO_DEVICES}),
        (("/dev/a",), True, 0, False, {Layer.NO_DEVICES, Layer.GPU_IN_TURNS, Layer.VAULTS_OUTSIDE_MPS}),
        (("/dev/a",), True, 1, False, {*ON_A_GPU}),
        (("/dev/a",), True, 1, True, {*ON_A_GPU} - {Layer.VAULTS_OUTSIDE_MPS}),
    ],
)
def test_what_a_device_takes_away_is_named(
    files: tuple[str, ...], shared: bool, attention: int, apart: bool, missing: set[Layer]
) -> None:
    device = MagicMock(spec=Device, files=files, shared=shared, attention_processes=attention, vaults_apart=apart)
    assert without_layers(device) == missing <= BEST_EFFORT
