"""How long the same computation would take over slower lines than the loopback it was measured on.

    seconds on a line = seconds measured + bytes of the busiest party / bandwidth + messages of one party x latency

Parties have a line each, so bytes count by party. Every message is waited for: SPU's protocols are rounds of one
message each way, and no two rounds overlap. Latency is what one message takes to arrive (half of a ping). Computing and
sending do not overlap either. All three make the model an upper bound for one generation alone; the loopback's own time
stays in the seconds measured. Knows numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloister.bench.mpc.cost import Tally


@dataclass(frozen=True, slots=True)
class Line:
    """A network line of each party to the others."""

    name: str
    bytes_per_second: float
    latency_seconds: float

    def seconds(self, tally: Tally) -> float:
        """What `tally` would take over this line."""
        sending = tally.most_bytes / self.bytes_per_second
        return tally.seconds + sending + tally.most_messages * self.latency_seconds


LAN = Line("lan", 377e6, 0.3e-3)  # both as in the paper's own setting (§5.1: Rathee et al., 2020)
WAN = Line("wan", 40e6, 40e-3)
