"""What the detection bench counts: blocks by their labels, shares with their intervals, a threshold for a recall."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cloister.detection.pipeline import Pipeline
from cloister.detection.rules import RuleSet, read_rules
from cloister.errors import SetupError
from cloister.messages.controller_detector import Label
from cloister_bench.detection.data import Sample, quarter_of, read_sets
from cloister_bench.detection.results import ALL, Block, Plan, Results, examined, rates, tables, threshold_for
from cloister_bench.suite.documents import wilson

ONE_RULE = 'version = 1\n[[rule]]\nid = "own"\ncategory = "blacklist"\nwords = ["heron"]\n'


def block(private: bool, score: float, *, tier1: bool = False, label: Label = Label.PUBLIC) -> Block:
    return Block("a", "en", private, tier1, label, score)


def test_a_block_is_private_where_a_labelled_span_touches_it_and_unknown_ones_are_left_out() -> None:
    text = "x" * 60 + " heron " + "y" * 100 + " what " + "z" * 30
    spans = ((61, 66, "PERSON"), (text.index("what"), text.index("what") + 4, "?"))
    blocks = examined(Pipeline(RuleSet(read_rules(ONE_RULE)), None), Sample("a", "en", 3, text, spans))
    assert [one.private for one in blocks] == [True, True, False]
    assert [one.tier1 for one in blocks] == [True, True, False], "the heron lies across two blocks"


def test_shares_and_the_interval_around_them() -> None:
    low, high = wilson(98, 100)
    assert (round(low, 3), round(high, 3)) == (0.930, 0.994)
    assert wilson(0, 0) == (0.0, 1.0)
    blocks = [block(True, 0.9), block(True, 0.1), block(False, 0.9), block(False, 0.2)]
    held = [one.score >= 0.5 for one in blocks]
    assert held.count(True) == 2
    found = rates(blocks, lambda one: one.score >= 0.5)
    assert found["recall"]["share"] == 0.5 and found["held_clean"]["of"] == 2


@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.9, 1.0])
def test_the_threshold_reaches_its_recall_and_not_much_more(wanted: float) -> None:
    blocks = [block(True, number / 100) for number in range(100)] + [block(True, 0.0, tier1=True) for _ in range(20)]
    threshold = threshold_for(blocks, wanted)
    reached = rates(blocks, lambda one: one.tier1 or one.score >= threshold)["recall"]
    assert wanted - 1e-4 <= reached["share"] <= wanted + 0.02


def test_the_document_has_rates_by_tier_set_and_language_and_its_targets() -> None:
    results = Results(Plan(public_below=0.5), "test")
    held = replace(block(False, 0.1, label=Label.PRIVATE), language="de")
    results.blocks = [block(True, 0.9, label=Label.PRIVATE), *(block(False, 0.1) for _ in range(9)), held]
    document = results.document()
    assert (
        document["overall"][ALL]["recall"]["share"] == 1.0 and document["overall"]["tier 1"]["recall"]["share"] == 0.0
    )
    clean = {name: rates[ALL]["held_clean"] for name, rates in document["languages"].items()}
    assert {name: (each["share"], each["of"]) for name, each in clean.items()} == {
        "en": (0.0, 9),
        "de": (1.0, 1),
    }
    assert [row["met"] for row in document["targets"]][:2] == [True, True]
    json.dumps(document)
    assert len(tables(document)) == 4


def test_a_folder_without_sets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as refused:
        list(read_sets(tmp_path))
    assert refused.value.hint


def test_a_quarter_is_for_ever_the_same() -> None:
    assert [quarter_of(key) for key in range(6)] == [1, 3, 1, 3, 0, 2]
