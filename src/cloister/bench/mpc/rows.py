"""Costs as the JSON's rows. Megabytes are 10⁶ bytes, sent by all parties together; messages are one party's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cloister.bench.mpc.cost import Cost, Tally
from cloister.bench.mpc.link_model import LAN, WAN

Row = dict[str, Any]


def cost_row(tally: Tally) -> Row:
    """What every measurement reports."""
    return {
        "seconds": round(tally.seconds, 4),
        "megabytes": round(tally.bytes / 1e6, 4),
        "messages": tally.most_messages,
        "lan_seconds": round(LAN.seconds(tally), 4),
        "wan_seconds": round(WAN.seconds(tally), 4),
        "busiest_megabytes": round(tally.most_bytes / 1e6, 4),
        "cpu_seconds": round(tally.most_cpu, 4),
        "lan_cpu_seconds": round(LAN.seconds(tally) - tally.seconds + tally.most_cpu, 4),
    }


def operator_rows(cost: Cost, **labels: Any) -> list[Row]:
    """One for each operator that sends or takes time, dearest on a LAN first."""
    ordered = sorted(cost.operators.items(), key=lambda item: -LAN.seconds(item[1]))
    return [
        {**labels, "operator": name, "times": tally.times, **cost_row(tally)}
        for name, tally in ordered
        if tally.most_messages or tally.seconds > 1e-4
    ]


def find(rows: Iterable[Row], **having: Any) -> Row | None:
    """The first row with these values."""
    return next((row for row in rows if having.items() <= row.items()), None)
