"""Tier 3's measurement: which blocks are asked about, and the area under the curve with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

from cloister.controller.judge import digest_of_model
from cloister.detection.judge import MARGIN
from cloister.detection.pipeline import Examined, Pipeline, Verdict
from cloister.detection.rules import RuleSet, read_rules
from cloister.errors import SetupError
from cloister.messages.controller_detector import Category, Label
from cloister_bench.detection.data import Sample
from cloister_bench.detection.judge_accuracy import BLOCK_TOKENS, Asked, report_on
from tests.forkserver.model import save_model

ONE_RULE = 'version = 1\n[[rule]]\nid = "own"\ncategory = "blacklist"\nwords = ["heron"]\n'
DRAW = np.random.default_rng(0)


def test_the_area_is_the_share_of_pairs_in_order_and_its_interval_covers_it() -> None:
    clean, private = np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 5.0])
    assert report_on("m", "d", clean, private).area == pytest.approx((2.5 + 3 - 1) / 9 + 1 / 9, abs=1e-4)
    covered = 0
    for _ in range(200):
        report = report_on("m", "d", DRAW.normal(1.19, 1, 100), DRAW.normal(0, 1, 100))
        covered += report.low <= 0.80 <= report.high
    assert 180 <= covered <= 198, "d' = 1.19 has an area of 0.80"
    passed = report_on("m", "d", np.array([MARGIN, MARGIN + 1]), np.array([MARGIN + 1.0, 0, 0, 0]))
    assert (passed.clean_passed, passed.private_passed) == (0.5, 0.25)


class Unsure(Pipeline):
    """Every second block is uncertain."""

    def examine(self, text: str, ends: Sequence[int], *, load: float = 0.0, suspicion: float = 0.0) -> Examined:
        labels = islice(cycle((Label.UNCERTAIN, Label.PUBLIC)), len(ends))
        return Examined([Verdict(label, 2, Category.NAME, 0.5) for label in labels], [])


def test_uncertain_blocks_of_both_kinds_are_asked_about(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    asked = Asked(folder)
    pipeline = Unsure(RuleSet(read_rules(ONE_RULE)), None)
    text = " ".join(f"word{number}" for number in range(200))
    sample = Sample("a", "en", 3, text, ((0, 40, "PERSON"),))
    doubts = asked.doubts(pipeline, sample)
    assert doubts[0][0] and not doubts[-1][0]
    assert len(doubts[1][1].tokens) - len(doubts[0][1].tokens) == 2 * BLOCK_TOKENS
    report = asked.measure(pipeline, [sample], 1, lambda count: lambda kind: None)
    assert (report.private, report.clean, report.digest) == (1, 1, digest_of_model(folder.path))
    with pytest.raises(SetupError):
        asked.measure(pipeline, [sample], 150, lambda count: lambda kind: None)
