"""The protocols that are measured, as SPU's settings. No sockets, no processes."""

from __future__ import annotations

from typing import Any

from cloister.bench.mpc.orders import ProtocolName

PARTIES: dict[ProtocolName, int] = {"aby3": 3, "cheetah": 2}


def settings_of(protocol: ProtocolName, *, profile: bool = False) -> Any:
    """The numbers' format as in serving; with `profile` every run writes what each operator cost."""
    from cloister.mpc.shares import runtime_config

    settings = runtime_config(protocol)
    settings.enable_pphlo_profile = profile
    return settings
