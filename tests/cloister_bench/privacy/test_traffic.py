"""The topic classifier can succeed: plain streams of two vocabularies are told apart, and on the beat they are not."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from cloister.errors import SetupError
from cloister_bench.privacy.classifier import auc
from cloister_bench.privacy.replay import Recorded, Way, traffic_of
from cloister_bench.privacy.results import QUICK
from cloister_bench.privacy.rows import Victim
from cloister_bench.privacy.traffic import BEAT_S, Labelled, attack, classified, recorded


def answers(count: int) -> list[Labelled]:
    """Of one length and pace; one topic's words are longer, and it pauses more."""
    draw, found = Random(5), []
    for number in range(count):
        topic, at = number % 2, 0.2
        pieces: list[tuple[float, str]] = []
        for _ in range(24):
            at += 0.05 if not topic else draw.choice((0.01, 0.09))
            pieces.append((min(at, 1.5), " " + "w" * draw.randint(1 + topic, 5 + 2 * topic)))
        found.append((topic, number // 4, [*pieces, (1.6, ".")]))
    return found


def test_the_attack_succeeds_on_plain_streams_and_not_on_the_beat() -> None:
    found = {row["setting"]: row for row in classified(answers(120))}
    assert found["plain stream"]["gets"] > 0.9 and found["plain stream"]["baseline"] > 0.9
    assert found["sealed, beat off"]["gets"] > 0.9, "moments alone tell"
    assert found["plain stream, --beat"]["gets"] == pytest.approx(0.5), "nothing differs"
    assert all(row["low"] <= row["gets"] <= row["high"] and row["of"] == 120 for row in found.values())


def test_an_observer_sees_the_nodes_own_bytes() -> None:
    answer: Recorded = [(0.2, "a"), (0.21, "bc"), (0.5, "d"), (0.8, "e")]
    plain = traffic_of(answer, Way())
    assert [at for at, _ in plain] == [0.2, 0.21, 0.5, 0.8] and plain[1][1] == plain[2][1] + 1
    beaten = traffic_of(answer, Way(beat_s=BEAT_S))
    assert {size for _, size in beaten} == {1024}
    assert [at for at, _ in beaten] == pytest.approx([BEAT_S * number for number in range(2, 7)])
    sealed = traffic_of(answer, Way(sealed=True, waits_s=BEAT_S))
    assert [at for at, _ in sealed] == pytest.approx([0.2, 0.3, 0.6, 0.8]) and min(size for _, size in sealed) > 512
    relayed = traffic_of(answer, Way(sealed=True, waits_s=BEAT_S, relayed=True))
    assert [at for at, _ in relayed] == [at for at, _ in sealed], "a chunk leaves when what it holds does"
    added = [after - before for (_, before), (_, after) in zip(sealed, relayed, strict=True)]
    assert len(set(added[:-1])) == 1, "the relay's bytes say what the sealed ones say"


def test_without_prompts_nothing_is_recorded() -> None:
    with pytest.raises(SetupError, match="no prompts"):
        list(attack(Victim(QUICK, None, Path(), None, lambda: None, texts=[{"text": "of no topic"}])))


def test_events_are_read_with_their_moments() -> None:
    def event(text: str) -> bytes:
        return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"

    whole = event("") + event("a") + b": comment\n\n" + event("b")
    arrivals = [(10.2, whole[:50]), (10.3, whole[50:]), (10.4, b"data: [DONE]\n\n")]
    assert [text for _, text in recorded(SimpleNamespace(sent=10.0, arrivals=arrivals))] == ["a", "b"]  # type: ignore[arg-type]


def test_auc_counts_ties_as_half() -> None:
    assert auc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 1.0])) == pytest.approx(0.875)
