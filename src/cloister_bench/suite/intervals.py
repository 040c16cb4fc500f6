"""Confidence intervals of what is counted."""

from __future__ import annotations

from math import sqrt


def wilson(hits: float, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% confidence interval of a share (Wilson 1927)."""
    if not total:
        return 0.0, 1.0
    share, square = hits / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    reach = z * sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    return max(0.0, middle - reach), min(1.0, middle + reach)
