"""Structured output through the whole node, with the official client: the form is right whatever the model says, and
the same at every level."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Annotated, Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.grammar.schemas import FORMATS, SCHEMAS
from tests.serving.test_openai import Connect, connected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ASKED = [{"role": "user", "content": "Describe the city of Paris."}]
LEVELS = ("open", "isolated", "partitioned")
WAYS = ("plain", "verified")


class City(BaseModel):
    name: str = Field(max_length=40)
    kind: Literal["village", "town", "city"]
    inhabitants: int = Field(ge=0, le=100_000_000)
    sights: list[Annotated[str, Field(max_length=20)]] = Field(max_length=3)


BY_CLIENTS = pytest.mark.parametrize("connect", ["plain", "verified"], indirect=True)
BY_THE_NODE = pytest.mark.parametrize(
    "connect", ["plain", pytest.param("verified", marks=pytest.mark.release)], indirect=True
)


@pytest.fixture(scope="module")
def connect(request: pytest.FixtureRequest, short_server: str) -> Iterator[Connect]:
    with connected(request.param, short_server) as connect:
        yield connect


@pytest.fixture
def client(connect: Connect) -> openai.OpenAI:
    return connect("cloister-dev")


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def schema_of(name: str) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMAS[name], "strict": True}}


@BY_CLIENTS
@pytest.mark.parametrize("level", LEVELS)
def test_the_official_client_parses_a_class(client: openai.OpenAI, model: str, level: str) -> None:
    answer = client.chat.completions.parse(
        model=model,
        messages=ASKED,
        response_format=City,
        temperature=0,
        max_tokens=300,
        extra_body={"protection": level},
    )
    assert isinstance(answer.choices[0].message.parsed, City) and answer.choices[0].finish_reason == "stop"


@BY_THE_NODE
@pytest.mark.parametrize("asked", [{"temperature": 0}, {"temperature": 0.9, "seed": 7, "presence_penalty": 0.4}])
def test_the_levels_give_the_same_tokens_and_logprobs(client: openai.OpenAI, model: str, asked: dict[str, Any]) -> None:
    def answer(level: str) -> Any:
        given = client.chat.completions.create(
            model=model,
            messages=ASKED,
            max_tokens=120,
            logprobs=True,
            top_logprobs=2,
            response_format=schema_of("an order"),
            extra_body={"protection": level},
            **asked,
        )
        return given.choices[0].message.content, given.choices[0].logprobs, given.usage.completion_tokens

    first, *others = [answer(level) for level in ("shared", *LEVELS)]
    assert others == [first] * len(others)
    jsonschema.validate(json.loads(first[0]), SCHEMAS["an order"], format_checker=FORMATS)


@BY_CLIENTS
def test_vllm_s_fields_and_plain_completions(client: openai.OpenAI, model: str) -> None:
    def text(**form: Any) -> str:
        return client.completions.create(
            model=model, prompt="The answer is", temperature=0, max_tokens=100, extra_body=form
        ).choices[0].text  # fmt: skip

    assert text(guided_choice=["yes", "no"]) in ("yes", "no")
    assert re.fullmatch(r"[0-9]{3}-[a-z]{2}", text(guided_regex=r"[0-9]{3}-[a-z]{2}"))
    assert text(guided_grammar='start: "it is " ("so" | "not so")') in ("it is so", "it is not so")
    assert set(json.loads(text(structured_outputs={"json": SCHEMAS["a person"]}))) == {"name", "age"}


@BY_CLIENTS
def test_a_stream_choices_and_a_stop_string(client: openai.OpenAI, model: str) -> None:
    given: dict[str, Any] = {"model": model, "messages": ASKED, "response_format": schema_of("a person"), "seed": 3}
    answer = client.chat.completions.create(**given, n=3, max_tokens=80)
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMAS["a person"])
    chunks = list(client.chat.completions.create(**given, max_tokens=80, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == answer.choices[0].message.content
    cut = client.chat.completions.create(**given, max_tokens=80, stop=['"age"'])
    assert cut.choices[0].message.content == streamed.partition('"age"')[0]


@BY_THE_NODE
def test_nothing_but_the_form_ends_an_answer(client: openai.OpenAI, model: str) -> None:
    """Neither `ignore_eos` nor `min_tokens` makes it longer than its form allows, nor shorter."""
    given: dict[str, Any] = {"model": model, "messages": ASKED, "temperature": 0, "max_tokens": 60}
    for more in ({"ignore_eos": True}, {"min_tokens": 50}, {}):
        answer = client.chat.completions.create(**given, response_format=schema_of("a pair"), extra_body=more)
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMAS["a pair"])
        assert answer.choices[0].finish_reason == "stop"
    held = client.chat.completions.create(**given, extra_body={"guided_regex": "(ab)*", "min_tokens": 40})
    assert re.fullmatch("(ab)*a?", held.choices[0].message.content) and held.usage.completion_tokens >= 40


@BY_THE_NODE
def test_answers_with_and_without_forms_do_not_touch_each_other(client: openai.OpenAI, model: str) -> None:
    def ask(form: dict[str, Any] | None) -> str:
        return client.chat.completions.create(
            model=model, messages=ASKED, temperature=0, max_tokens=40, extra_body={"protection": "open", **(form or {})}
        ).choices[0].message.content  # fmt: skip

    forms = [None, {"response_format": schema_of("a person")}, {"guided_regex": "[a-z]{5,9}"}, None] * 2
    alone = [ask(form) for form in forms[:3]]
    with ThreadPoolExecutor(len(forms)) as threads:
        assert list(threads.map(ask, forms)) == [alone[place % 4 % 3] for place in range(len(forms))]


@BY_CLIENTS
@pytest.mark.parametrize("level", LEVELS)
def test_a_form_that_cannot_be_followed_is_a_plain_refusal(client: openai.OpenAI, model: str, level: str) -> None:
    for form in ({"guided_regex": "(xqzwv"}, {"guided_regex": "(xqzwv{1,100}){1,100}"}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=model, messages=ASKED, extra_body={"protection": level, **form})
        assert refused.value.code == "form_refused" and "xqzwv" not in str(refused.value)


@BY_CLIENTS
def test_at_obfuscated_the_vault_answers_alone_what_cannot_go_among_others(client: openai.OpenAI, model: str) -> None:
    """A form, several answers, a conversation without a session: bit for bit what `isolated` says without the tags."""
    plain = [*ASKED, {"role": "assistant", "content": "It is Paris."}, {"role": "user", "content": "In one word?"}]
    marked = [{**turn, "content": turn["content"].replace("Paris", "<redacted>Paris</redacted>")} for turn in plain]
    for more in ({"response_format": schema_of("a person")}, {"n": 2}, {}):

        def said(level: str, turns: Any, more: dict[str, Any] = more) -> list[str]:
            answer = client.chat.completions.create(
                model=model, messages=turns, seed=5, max_tokens=60, extra_body={"protection": level}, **more
            )
            return [choice.message.content for choice in answer.choices]

        turns = slice(None) if not more else slice(1)
        assert said("obfuscated", marked[turns]) == said("isolated", plain[turns])


@BY_THE_NODE
def test_verified_answers_have_a_form_too(client: openai.OpenAI, model: str) -> None:
    for level in LEVELS:
        answer = client.chat.completions.create(
            model=model,
            messages=ASKED,
            temperature=0,
            max_tokens=60,
            response_format=schema_of("a person"),
            extra_body={"protection": level, "verify": True},
        )
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMAS["a person"])


@pytest.mark.parametrize(
    ("way", "level", "every"),
    [("plain", "open", 8), *(pytest.param(*case, 1, marks=pytest.mark.release) for case in product(WAYS, LEVELS))],
)
def test_the_answers_to_a_sample_of_schemas_validate(way: str, level: str, every: int, real_server: str) -> None:
    """The whole model, which ends a string or a number by itself."""
    names = [*SCHEMAS][::every]
    with connected(way, real_server) as connect:
        client = connect("cloister-dev")
        model = client.models.list().data[0].id

        def ask(name: str) -> str:
            answer = client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"Give an example of {name} as JSON."}],
                temperature=0,
                max_tokens=400,
                response_format=schema_of(name),
                extra_body={"protection": level},
            )
            return answer.choices[0].message.content

        with ThreadPoolExecutor(8) as threads:
            answers = dict(zip(names, threads.map(ask, names), strict=True))
    wrong = []
    for name, answer in answers.items():
        try:
            jsonschema.validate(json.loads(answer), SCHEMAS[name], format_checker=FORMATS)
        except (ValueError, jsonschema.ValidationError):
            wrong.append((name, answer))
    assert not wrong
