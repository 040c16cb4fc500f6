"""Thresholds that move (SafeKV §V-D): lower, so that more is private, under load or suspicion and where tier 3 often
finds the uncertain private; a little higher in calm. They never rise beyond what calibration allows for.
"""

from __future__ import annotations

from math import exp, log

from cloister.prefix.detection.tagger import Calibration

LOAD, SUSPICION, HISTORY = 0.7, 2.0, 0.5
"""How far each moves a threshold, in logits, at its fullest."""
CALM = 0.2
_MEMORY = 0.98
"""How much of what is known of tier 3's answers is kept at each."""


class Thresholds:
    """`found` is told what tier 3 said; `at` gives the thresholds for a request."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._found_private = 0.5
        self._answers = 0

    def found(self, *, private: bool) -> None:
        self._answers += 1
        self._found_private += (1 - _MEMORY) * (private - self._found_private)

    def at(self, load: float = 0.0, suspicion: float = 0.0) -> Calibration:
        """`load` and `suspicion` from 0 to 1."""
        shift = LOAD * load + SUSPICION * suspicion
        if self._answers:
            shift += HISTORY * max(0.0, 2 * self._found_private - 1)
            if not load and not suspicion:
                shift -= CALM * max(0.0, 1 - 2 * self._found_private)
        public, private = (_moved(each, -shift) for each in self._calibration)
        return Calibration(public, max(public, private))


def _moved(probability: float, logits: float) -> float:
    probability = min(max(probability, 1e-9), 1 - 1e-9)
    return 1 / (1 + exp(-(log(probability / (1 - probability)) + logits)))
