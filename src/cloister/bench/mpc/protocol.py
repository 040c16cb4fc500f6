"""The protocols that are measured, as SPU's settings. No sockets, no processes."""

from __future__ import annotations

from typing import Any

from cloister.bench.mpc.orders import ProtocolName

PARTIES: dict[ProtocolName, int] = {"aby3": 3, "cheetah": 2}


def settings_of(protocol: ProtocolName, *, profile: bool = False) -> Any:
    """64-bit ring, 18 fraction bits, as in serving; with `profile` every run writes what each operator cost."""
    from spu import libspu

    kind = libspu.ProtocolKind.ABY3 if protocol == "aby3" else libspu.ProtocolKind.CHEETAH
    settings = libspu.RuntimeConfig(protocol=kind, field=libspu.FieldType.FM64, fxp_fraction_bits=18)
    settings.enable_pphlo_profile = profile
    return settings
