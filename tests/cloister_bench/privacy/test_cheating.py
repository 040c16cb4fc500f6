"""What a cheating service and its receiver agreed on, and how received bits are counted. Over HTTP: tests/serving."""

from __future__ import annotations

import random
from math import ceil
from pathlib import Path

import pytest

from cloister.controller.requests import rounded
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from cloister_bench.privacy import cheating
from cloister_bench.privacy import cheating_code as code
from cloister_bench.privacy.cheating import Answer, Trial, alphabet_of, information, rate
from cloister_bench.privacy.cheating_code import Payload, Symbol, read_scores, scores_of
from tests.forkserver.model import save_model

SOURCE = Path(cheating.__file__).parents[2]


def test_what_is_written_into_scores_passes_the_gate_and_is_read_again_to_the_last_bit() -> None:
    alphabet, payload = list(range(100, 100 + 2**code.TOKEN_BITS + code.TOPS)), Payload([1, 2, 3])
    for position in range(1, 40):
        made = rounded((scores_of(payload, position, alphabet),), code.TOPS, 49152)
        assert made is not None
        top = [(token - 100, value) for token, value in made[0].top]
        symbols = read_scores(position, made[0].logprob, top)
        assert sum(symbol.bits for symbol in symbols) == code.SCORE_BITS
        assert not sum(map(payload.wrong, symbols))


def test_another_answer_has_other_bits() -> None:
    one, other = Payload([1, 2, 3]), Payload([1, 2, 4])
    wrong = sum(one.wrong(Symbol(at, 15, other.take(at, 15))) for at in range(0, 15_000, 15))
    assert 7_000 < wrong < 8_000
    assert one.wrong(Symbol(3, 4, one.take(3, 4) ^ 0b101)) == 2


def test_letters_of_the_alphabet_are_told_apart_by_what_the_api_shows(tmp_path: Path) -> None:
    folder: ModelFolder = save_model(tmp_path)
    tokenizer = Tokenizer(folder)
    letters = alphabet_of(tokenizer)
    spelled = [tokenizer.token_bytes(token) for token in letters]
    assert len(letters) == 256 and len(set(spelled)) == 256 and not set(letters) & tokenizer.special


def test_a_guess_gets_nothing_and_a_certain_bit_one() -> None:
    assert information(0.0) == 1.0 and information(0.5) == information(0.7) == 0.0
    assert information(0.11) == pytest.approx(0.5, abs=0.01)
    assert rate([Trial(640, 0, 64, False)] * 10) == pytest.approx((10_000, 9_800, 10_000), rel=0.03)
    assert rate([Trial(0, 0, 64, True)] * 10) == (0.0, 0.0, 0.0)


def test_an_interval_of_guesses_begins_at_nothing_and_one_of_few_trials_is_wide() -> None:
    draws = random.Random(5)
    guessed = [Trial(64, sum(draws.random() < 0.5 for _ in range(64)), 64, False) for _ in range(30)]
    got, low, high = rate(guessed)
    assert low == 0.0 and got < 2 and got <= high
    mixed = [Trial(64 * (number % 2), 0, 64, False) for number in range(10)]
    got, low, high = rate(mixed)
    assert low < 300 and got == 500 and high > 700


def test_no_code_of_the_product_knows_of_the_cheating_service() -> None:
    found = [path for path in (SOURCE / "cloister").rglob("*.py") if "cheating" in path.read_text("utf-8")]
    assert not found


def delayed(channel: str, payload: Payload, tokens: int) -> Answer:
    """What a receiver sees of a service that waits, in moments that the test makes up."""
    every, delay = code.DELAYS[channel]
    at, moments = 0.0, []
    for number in range(tokens):
        if number and (number - 1) % every == 0:
            at += delay * payload.take((number - 1) // every, 1)
        moments.append(at := at + 0.02)
    return Answer(moments=moments)


@pytest.mark.parametrize("channel", code.DELAYS)
def test_delays_are_read_to_the_bit_and_on_a_beat_they_are_not(channel: str) -> None:
    payload, tokens = Payload([1, 2, 3]), 1 + 32 * code.DELAYS[channel][0]
    answer = delayed(channel, payload, tokens)
    symbols = list(cheating.read(channel, [answer]))
    assert len(symbols) == 32 and not sum(map(payload.wrong, symbols))
    beat = 32 * code.DELAYS[channel][1]
    answer.moments = [beat * ceil(at / beat) for at in answer.moments]
    assert sum(map(payload.wrong, cheating.read(channel, [answer]))) > 6


@pytest.mark.parametrize("bit", [0, 1])
def test_a_restart_is_read_from_a_gap_or_an_error(bit: int) -> None:
    broken = Answer(moments=[0.1, 0.2], error="gone" * bit)
    late = Answer(moments=[0.1, 0.2 + 2 * cheating.RESTART_S * bit])
    assert [next(iter(cheating.read("restarts", [one]))).value for one in (broken, late)] == [bit, bit]
