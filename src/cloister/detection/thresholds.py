"""Thresholds that move (SafeKV §V-D): lower, so that more is private, under load or suspicion. They never rise.
Tier 3 does not move them, as in the paper: a tenant can write prompts that tier 3 passes."""

from __future__ import annotations

from math import exp, log

from cloister.detection.tagger import Calibration

LOAD, SUSPICION = 0.7, 2.0  # how far each moves a threshold, in logits, at its fullest


def lowered(calibration: Calibration, load: float = 0.0, suspicion: float = 0.0) -> Calibration:
    """`load` and `suspicion` from 0 to 1."""
    shift = LOAD * load + SUSPICION * suspicion
    public, private = (_moved(each, -shift) for each in calibration)
    return Calibration(public, max(public, private))


def _moved(probability: float, logits: float) -> float:
    probability = min(max(probability, 1e-9), 1 - 1e-9)
    return 1 / (1 + exp(-(log(probability / (1 - probability)) + logits)))
