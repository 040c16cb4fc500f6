"""Answers that follow a form in the engine: among others, preempted, with logprobs, bias, penalties and minimums."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

import pytest

from cloister.grammar import compiled
from cloister.messages.types import SamplingParams
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import drain, make_engine, request
from tests.gateway.fakes import END, VOCABULARY, ByteTokenizer

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"enum": [1, 22]}}}
FORMS = (
    json.dumps({"json_schema": {**SCHEMA, "required": ["a", "b"], "additionalProperties": False}}),
    '{"regex":"[a-z]{3,12}[0-9]{2}"}',
    '{"choice":["yes","no","perhaps"]}',
)
PROMPT = range(40, 60)


@pytest.fixture(autouse=True)
def words() -> Iterator[None]:
    before = list(compiled._known)
    compiled.learn(ByteTokenizer())
    yield
    compiled._known[:] = before


def text(tokens: list[int]) -> str:
    return ByteTokenizer().decode(tokens)


def follows(form: str, said: str) -> bool:
    match json.loads(form):
        case {"regex": pattern}:
            return re.fullmatch(pattern, said) is not None
        case {"choice": choices}:
            return said in choices
        case _:
            return set(json.loads(said)) == {"a", "b"} and json.loads(said)["b"] in (1, 22)


def test_answers_follow_their_forms_alone_and_among_others() -> None:
    asked = [
        request(
            number, [*PROMPT, number], f"tenant {number % 3}", max_tokens=60, stop_tokens=(END,), seed=number, **how
        )
        for number, how in enumerate(
            {"grammar": form, "temperature": heat} for form in ("", *FORMS) for heat in (0.0, 0.8, 1.5)
        )
    ]
    engine = make_engine(FakeRunner(vocabulary=VOCABULARY))
    for each in asked:
        engine.submit(each)
    together = drain(engine)
    for each in asked:
        alone = make_engine(FakeRunner(vocabulary=VOCABULARY))
        alone.submit(each)
        assert drain(alone)[each.request_id] == together[each.request_id]
        if each.params.grammar:
            assert together[each.request_id].finish == "stop"
            assert follows(each.params.grammar, text(together[each.request_id].tokens))


def test_preemption_does_not_change_an_answer_with_a_form() -> None:
    def answers(blocks: int) -> tuple[dict[int, list[int]], int]:
        engine = make_engine(FakeRunner(vocabulary=VOCABULARY, num_blocks=blocks), max_running=8)
        for number in range(8):
            engine.submit(
                request(number, range(number, number + 20), grammar='{"regex":"([a-z]{4}-){16}"}', max_tokens=99)
            )
        return {number: answer.tokens for number, answer in drain(engine).items()}, engine.stats().preemptions

    few, preempted = answers(40)
    many, none = answers(400)
    assert few == many and preempted > 0 == none


def test_the_mask_comes_after_bias_and_penalties() -> None:
    bias = {ord("z"): 100.0, ord("a"): -100.0, END: 100.0}
    engine = make_engine(FakeRunner(vocabulary=VOCABULARY))
    engine.submit(
        request(
            1,
            PROMPT,
            grammar='{"regex":"[ab]{30}"}',
            logit_bias=bias,
            stop_tokens=(END,),
            max_tokens=64,
            temperature=0.0,
        )
    )
    assert text(drain(engine)[1].tokens) == "b" * 30


def test_logprobs_are_those_of_the_model() -> None:
    engine = make_engine(FakeRunner(vocabulary=VOCABULARY))
    engine.submit(request(1, PROMPT, grammar='{"choice":["abc"]}', logprobs=3, stop_tokens=(END,), temperature=0.0))
    answer = drain(engine)[1]
    assert text(answer.tokens) == "abc" and all(math.isfinite(each.logprob) for each in answer.logprobs)
    assert any(ord("a") != token for token, _ in answer.logprobs[0].top)


@pytest.mark.parametrize(("least", "form"), [(20, '{"regex":"(ab)*"}'), (5, '{"choice":["ab"]}')])
def test_a_minimum_holds_an_end_back_as_long_as_the_form_goes_on(least: int, form: str) -> None:
    engine = make_engine(FakeRunner(vocabulary=VOCABULARY))
    engine.submit(
        request(1, PROMPT, grammar=form, min_tokens=least, stop_tokens=(END,), logit_bias={END: 100.0}, max_tokens=64)
    )
    said = text(drain(engine)[1].tokens)
    assert said == "ab" if least == 5 else re.fullmatch("(ab){10}", said)


def test_a_form_that_cannot_be_followed_fails_its_own_answer_alone() -> None:
    engine = make_engine(FakeRunner(vocabulary=VOCABULARY))
    engine.submit(request(1, PROMPT, grammar='{"regex":"("}'))
    engine.submit(request(2, PROMPT))
    answers = drain(engine)
    failure = answers[1].failed
    assert failure is not None and (failure.code, failure.param) == ("form_refused", "response_format")
    assert len(answers[2].tokens) == 8


def test_parameters_do_not_print_their_form() -> None:
    assert "secret" not in repr(SamplingParams(grammar="secret"))
