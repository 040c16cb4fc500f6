"""Both tiers on blocks: what is found marks every block it touches, and what follows a private block is private."""

from __future__ import annotations

import pytest

from cloister.messages.detector import Category, Label
from cloister.prefix.detection.pipeline import Pipeline, Verdict, blocks_of, even_blocks, inherit
from cloister.prefix.detection.process import shipped_pipeline


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """Rules alone: what they find does not change with the tagger's training."""
    return Pipeline(shipped_pipeline().rules, None)


def labels(pipeline: Pipeline, text: str, ends: list[int]) -> list[Label]:
    return [verdict.label for verdict in pipeline.examine(text, ends).verdicts]


def test_a_span_marks_every_block_it_touches(pipeline: Pipeline) -> None:
    text = "write to a.very.long.name@example-of-a-domain.org now please"
    ends = [9, 20, 30, 49, len(text)]
    assert labels(pipeline, text, ends) == [Label.PUBLIC, *[Label.PRIVATE] * 3, Label.PUBLIC]


def test_a_disguised_span_marks_the_blocks_of_the_original(pipeline: Pipeline) -> None:
    text = "ok ok ok ok " + "su\u200b\u200b\u200bnny@exam\u200bple.org" + " and so on, as it were"
    start, end = 12, text.index(".org") + 4
    marked = labels(pipeline, text, [start, end, len(text)])
    assert marked == [Label.PUBLIC, Label.PRIVATE, Label.PUBLIC]


def test_every_character_of_a_finding_is_of_the_original(pipeline: Pipeline) -> None:
    text = "Ｍｙ mail: sunny@example.org, card ４１１１ 1111 1111 1111"
    found = {
        finding.rule: text[finding.start : finding.end] for finding in pipeline.examine(text, [len(text)]).findings
    }
    assert found["email"] == "sunny@example.org" and found["card"].startswith("４１１１")


def test_private_and_uncertain_are_inherited() -> None:
    row = [Verdict(label, 2, Category.NAME, 0.5) for label in (Label.PUBLIC, Label.UNCERTAIN, Label.PUBLIC)]
    row += [Verdict(Label.PRIVATE, 1, Category.NAME, 1.0), Verdict(Label.PUBLIC, 0, Category.NONE, 0.0)]
    got = inherit(row)
    assert [each.label for each in got] == [2, 1, 1, 0, 0]
    assert [each.category for each in got][2::2] == [Category.INHERITED] * 2


def test_suspicion_makes_more_private() -> None:
    pipeline = shipped_pipeline()
    words = ["Paris", "Heron", "April", "Mason", "Python", "Grace", "Summer", "Victoria", "Windows", "Jordan"]
    text = " ".join(f"about {word}." for word in words)
    ends = even_blocks(text, 16)
    calm = pipeline.examine(text, ends).verdicts
    wary = pipeline.examine(text, ends, suspicion=1.0).verdicts
    assert all(one.label <= other.label for one, other in zip(wary, calm, strict=True))


def test_blocks_of_a_span() -> None:
    assert list(blocks_of(0, 3, [3, 6])) == [0]
    assert list(blocks_of(2, 4, [3, 6])) == [0, 1]
    assert list(blocks_of(3, 3, [3, 6])) == [1]
    assert list(blocks_of(9, 12, [3, 6])) == []


def test_an_empty_text_has_no_blocks(pipeline: Pipeline) -> None:
    assert even_blocks("") == [] and pipeline.examine("", []).verdicts == []
