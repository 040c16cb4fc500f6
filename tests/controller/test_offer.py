"""What a node offers with its default settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloister.config import ControllerSettings, GatewaySettings, Settings
from cloister.controller.offer import Offer
from cloister.controller.relay import Relay
from cloister.messages.controller_forkserver import Preloaded
from cloister.messages.generation import Ready
from tests.controller.fakes import nothing_is_sealed


@pytest.mark.parametrize(
    ("keys", "controller", "grid"),
    [
        (Path("keys"), ControllerSettings(), {"shared": 100}),
        (None, ControllerSettings(), {}),
        (Path("keys"), ControllerSettings(quantise_ttft_ms=0), {}),
        (Path("keys"), ControllerSettings(shared_policy="partition"), {}),
        (Path("keys"), ControllerSettings(prefix_policy="global"), {"open": 100, "shared": 100}),
    ],
)
def test_first_tokens_lie_on_a_grid_where_tenants_with_keys_share(
    keys: Path | None, controller: ControllerSettings, grid: dict[str, int]
) -> None:
    settings = Settings(gateway=GatewaySettings(keys_file=keys), controller=controller)
    compute: Any = SimpleNamespace(
        preloaded=Preloaded(4, 64, 2, partitionable=True), ready=Ready(300, 512, 64, 16, "cpu")
    )
    relay = Relay(controller, 1, nothing_is_sealed)
    Offer(settings, relay, compute, "not here").service_up()
    assert relay.offered is not None and relay.offered.quantised == grid
