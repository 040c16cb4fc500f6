"""Attackers against the node's own code, without a model: with a switch off its attack wins, with it on it fails."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import SetupError
from cloister.prefix.public_pages import attack_gain
from cloister_bench.load import Answer
from cloister_bench.sharing.attack import attack_one
from cloister_bench.sharing.attack_results import FIGURES, GUESSING, Plan, Results, tables
from cloister_bench.sharing.attackers import FLOODING, SCRIPTS, SIGNALS, Attacked, attack_family, attacked, score
from cloister_bench.sharing.families import AFTER, BEFORE, Family, free_families, read_families, trials
from cloister_bench.sharing.world import NO_NOISE, PAGE, Reader, Setting, Tokens, World
from cloister_bench.suite.documents import draw_figures, wilson

TRIALS = 40
FAMILY = Family("words", lambda draw, count: [f"my word is {draw.randrange(10**9)} and so on" for _ in range(count)])


class Words(Reader):
    """A token for each word; with a word of a `private` text, nothing passes."""

    def __init__(self, *, private: bool = False) -> None:
        self._private = private

    def tokens(self, text: str) -> Tokens:
        return tuple(int.from_bytes(blake2b(word.encode(), digest_size=3).digest()) for word in text.split())

    def passed(self, tokens: Tokens) -> int:
        return 0 if self._private else len(tokens)


def found(setting: Setting, attack: str, *, private: bool = False, count: int = TRIALS) -> dict[str, dict[str, float]]:
    """Shares by attacker and signal."""
    rates = attack_family(FAMILY, Words(private=private), {"one": Attacked(setting, (attack,))}, count, 1)
    return {
        attacker: {signal: one / of for signal, one in zip(SIGNALS, right, strict=True)}
        for (_, attacker), (of, *right) in rates.items()
    }


def test_global_loses_and_partition_and_none_hold_against_every_attacker() -> None:
    for policy in ("partition", "none"):
        for attack in (*SCRIPTS, FLOODING):
            shares = found(Setting(policy), attack, count=8)
            assert {share for signals in shares.values() for share in signals.values()} == {GUESSING}, (policy, attack)
    for attack in ("plain", "page by page"):
        [shares] = found(Setting("global", grid_ms=0), attack).values()
        assert set(shares.values()) == {1.0}
    assert found(Setting("global"), "flooding", count=80)["flooding"]["count"] > 0.5


def test_with_noise_off_a_few_identities_more_than_the_threshold_win() -> None:
    """A page of T votes is public for every second ε that is large but finite, so a few more are needed."""
    off = found(Setting(epsilon=NO_NOISE, threshold=2), "voting", count=80)
    assert off["plain"]["clock"] == GUESSING and off["5 voters"]["clock"] > 0.6
    on = found(Setting(), "voting")
    assert on["2 voters"]["clock"] == on["5 voters"]["clock"] == GUESSING
    assert {one["count"] for one in (*on.values(), *off.values())} == {GUESSING}, "cached_tokens never tells"


def test_with_the_grid_off_times_show_what_counts_hide() -> None:
    shared = Setting(epsilon=NO_NOISE, threshold=0)
    assert found(shared, "plain")["plain"] == {"count": GUESSING, "time": GUESSING, "clock": 1.0}
    assert found(replace(shared, grid_ms=0), "plain")["plain"] == {"count": GUESSING, "time": 1.0, "clock": 1.0}
    assert found(Setting(grid_ms=0), "plain")["plain"]["time"] == GUESSING, "the noise alone holds"


def test_with_the_veto_off_a_popular_private_text_is_found() -> None:
    [on], [off] = (found(Setting(veto=veto), "popular", private=True).values() for veto in (True, False))
    assert on["clock"] == GUESSING and off["clock"] == 1.0 and off["count"] == GUESSING


def test_neither_a_guess_in_advance_nor_a_restart_draws_the_noise_again() -> None:
    shares = found(Setting(), "in advance")
    assert {one["count"] for one in shares.values()} == {GUESSING}
    assert all(one["clock"] - GUESSING < 0.05 for one in shares.values())
    prompt = Words().tokens(" ".join(map(str, range(3 * PAGE + 1))))
    seen = set()
    for number in range(40):
        world = World(Setting(threshold=3), Words(), number.to_bytes(32))
        shown = []
        for _ in range(4):  # after the first time no request adds a vote
            looks = [world.ask(f"account-{one}", prompt).found for one in range(4)]
            shown.append(looks[-1])
            world.restart()
        assert len(set(shown[1:])) == 1
        seen.add(shown[-1])
    assert {0, 3} <= seen, "some pages are public by noise, and some are not"


@pytest.mark.parametrize("policy", ["counted", "registered"])
def test_a_prompt_marked_for_its_own_account_is_not_found_by_another_that_marks_its_guesses(policy: Any) -> None:
    assert found(Setting(policy), "marking")["marking"]["count"] == GUESSING


def test_the_measured_gain_of_votes_lies_below_the_bound() -> None:
    setting = Setting(threshold=8)
    shares = found(setting, "voting", count=160)
    for number in (5, 7):
        assert shares[f"{number} voters"]["clock"] - GUESSING <= attack_gain(number, 1.0, 8) + 0.02
    assert shares["7 voters"]["clock"] > GUESSING + 0.05, "the attack is one that can win"


def test_a_guess_is_drawn_among_equals_and_among_what_could_not_be_seen() -> None:
    assert [score([0.0, 0.0, 0.0, 0.0], 2, hidden) for hidden in ([], [2], [0, 2], [0])] == [0.25, 1.0, 0.5, 0.0]
    assert [score([0.0, 1.0, 1.0, 0.5], true, [0]) for true in range(4)] == [0.0, 0.5, 0.5, 0.0]


def test_1800_trials_give_two_hundredths() -> None:
    assert wilson(450, 1800) == (pytest.approx(0.2306, abs=1e-4), pytest.approx(0.2705, abs=1e-4))
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))


@pytest.mark.parametrize("family", read_families(), ids=lambda family: family.name)
def test_candidates_differ_are_drawn_by_seed_and_each_is_once_the_true_one(family: Family) -> None:
    drawn, again = (list(trials(family, 16, seed)) for seed in (1, 1))
    assert drawn == again != list(trials(family, 16, 2))
    assert [trial.true for trial in drawn] == 4 * [0, 1, 2, 3]
    for trial in drawn:
        assert len({*trial.candidates, trial.other}) == 5 and "{" not in "".join(trial.candidates).replace("{ ", "")
        assert all(one.endswith(AFTER) for one in trial.candidates)
    assert sum(trial.other.startswith(BEFORE) for trial in drawn) == 8


def test_passages_of_other_texts_are_a_family_where_their_files_are(tmp_path: Path) -> None:
    assert free_families(tmp_path) == []
    (tmp_path / "longctx").mkdir()
    (tmp_path / "longctx" / "wikitext2_raw_test.txt").write_text("\n".join(f"{n} " * 40 for n in range(90)) + "\nshort")
    [family] = free_families(tmp_path)
    assert len(set(family.draw(random.Random(1), 5))) == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"a": {}}',
        '{"a": {"templates": [], "slots": {}}}',
        '{"a": {"templates": ["x"], "slots": {"b": []}}}',
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "own.json"
    file.write_text(text)
    with pytest.raises(SetupError, match="does not hold families"):
        read_families(file)


@pytest.mark.parametrize("template", ["{missing}", "always the same"])
def test_a_template_without_enough_values_is_refused(tmp_path: Path, template: str) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"a": {"templates": [template], "slots": {}}}))
    [family] = read_families(file)
    with pytest.raises(SetupError, match="'a'"):
        list(trials(family, 4, 1))


def test_the_document_has_every_policy_its_targets_and_a_figure(tmp_path: Path) -> None:
    results = Results(Plan(("words",), 8, 30, 1, Setting()), "m")
    results.offline["words"] = attack_family(FAMILY, Words(), attacked(Setting()), 4, 1)
    results.http["global"] = {"count": [30, 30.0]}
    document = results.document()
    met = {row["name"]: row["met"] for row in document["targets"]}
    assert met["global, least gain of the plain attacker"] and met["partition, gain"]
    assert met["counted, up to 7 identities, gain by count"] and met["grid off, T 0: gain by time"]
    assert {"counted", "registered", "partition", "none", "global"} < {row["policy"] for row in document["offline"]}
    assert document["http"][0]["low"] > 0.85 and len(tables(document)) == 4
    assert [file.name for file in draw_figures(document, tmp_path, FIGURES)] == ["sharing-attack.png"]


def over_http(policy: Any) -> Iterator[float]:
    rates: dict[str, list[float]] = {}
    world = World(Setting(policy), Words(), bytes(32))

    def ask(tenant: str, prompt: str) -> Answer:
        """A World, as a server is asked."""
        tokens = Words().tokens(prompt)
        seen = world.ask(tenant, tokens)
        first = (len(tokens) - PAGE * seen.found) / 1000
        return Answer(0.0, first, first, 1, PAGE * seen.reported)

    for number, trial in enumerate([*trials(FAMILY, 160, 1)][::5]):
        attack_one(ask, Words(), trial, number, rates)
    return (rates[signal][1] / rates[signal][0] for signal in ("count", "time"))


def test_over_http_the_plain_attacker_wins_where_all_is_shared_and_guesses_where_nothing_is() -> None:
    assert [*over_http("global")] == [1.0, 1.0]
    assert [*over_http("partition")] == [pytest.approx(GUESSING), pytest.approx(GUESSING, abs=0.15)]
