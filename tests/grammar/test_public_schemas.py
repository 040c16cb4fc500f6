"""JSONSchemaBench's easy and medium schemas, which are not ours to ship: of each kind the first 250 by file name, a
rule that was fixed before any result was seen. Each is compiled, or refused in our words; whatever random tokens then
say, the answer parses and validates."""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from jsonschema.validators import validator_for

from cloister.errors import FormRefused
from cloister.grammar.compiled import check
from cloister.grammar.form import form_of
from cloister.grammar.mask import Mask
from cloister.prompts.tokenizer import Tokenizer
from tests.grammar.schemas import FORMATS

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]

KINDS, OF_A_KIND = ("Github_easy", "Github_medium"), 250
ANSWERS, FREE, LONGEST = 3, 60, 1_000  # of each schema; tokens that are anything allowed, and in all
LONGER, LONGEST_TEXT = 16_000, 60


@pytest.fixture(scope="module")
def schemas(request: pytest.FixtureRequest) -> dict[str, str]:
    """$CLOISTER_JSONSCHEMABENCH: the folder `data` of the public set."""
    named = os.environ.get("CLOISTER_JSONSCHEMABENCH")
    folder = Path(named) if named else request.getfixturevalue("shared") / "jsonschemabench"
    if not all((folder / kind).is_dir() for kind in KINDS):
        pytest.skip("JSONSchemaBench is not here; set CLOISTER_JSONSCHEMABENCH to its folder `data`")
    files = [path for kind in KINDS for path in sorted((folder / kind).glob("*.json"))[:OF_A_KIND]]
    return {f"{path.parent.name}/{path.stem}": path.read_text() for path in files}


class Walker:
    """Says anything that is allowed, and after a while what closes, where it may: a short end before a longer text."""

    def __init__(self, words: Tokenizer) -> None:
        self._words, self.failed = words, False
        self._closing = [*words.stop_tokens, *(words.encode(sign)[0] for sign in '"}],:')]

    def answer(self, form: str, seed: int, most: int = LONGEST) -> str | None:
        """None where it does not end, or cannot be followed any further."""
        drawn, mask, said = random.Random(seed), Mask(form, self._words.stop_tokens), list[int]()
        while not mask.complete and not mask.failed and len(said) < most:
            row = torch.zeros(self._words.vocabulary)
            mask.apply(row)
            ends = len(said) > FREE and drawn.random() < 0.8
            token = next((one for one in self._closing if row[one] == 0), None) if ends else None
            if token is None:
                here = np.flatnonzero(row.numpy() == 0)
                few = [int(here[drawn.randrange(len(here))]) for _ in range(1 if seed % 2 else 3)]
                token = min(few, key=lambda one: len(self._words.token_bytes(one)))
            if token in self._words.stop_tokens:
                break
            mask.note(token)
            said.append(token)
        self.failed = mask.failed
        ended = not mask.failed and len(said) < most
        return b"".join(map(self._words.token_bytes, said)).decode() if ended else None


def form_for(schema: dict[str, Any]) -> str:
    return form_of({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}})


def bounded(schema: Any) -> Any:
    """Its texts with a pattern end: chance never says the `wifi` that a pattern looks for, and need not."""
    if isinstance(schema, list):
        return [bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    given = {name: bounded(each) for name, each in schema.items()}
    longest = min(given.get("maxLength", LONGEST_TEXT), LONGEST_TEXT + given.get("minLength", 0))
    return {**given, "maxLength": longest} if isinstance(given.get("pattern"), str) else given


def number(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except InvalidOperation:  # its exponent is too long
        return float(text)


def came_to(schema: str, answer: str | None) -> str:
    """Numbers are read as decimals: 306.66 is a multiple of 0.01."""
    if answer is None:
        return "cut"
    try:
        value = json.loads(answer, parse_float=number)
    except ValueError:
        return "no JSON"
    wanted = json.loads(schema, parse_float=number)
    kind = validator_for(wanted, default=jsonschema.Draft202012Validator)
    return "valid" if kind(wanted, format_checker=FORMATS).is_valid(value) else "invalid"


def test_every_answer_to_a_public_schema_validates(schemas: dict[str, str], words: Tokenizer) -> None:
    found, wrong, refused = Counter[str](), defaultdict[str, list[str]](list), Counter[str]()
    walker, failed = Walker(words), 0
    for name, text in schemas.items():
        schema = json.loads(text)
        try:
            form = form_for(schema)
            check(form)
        except FormRefused as reason:
            found["refused"] += 1
            refused[str(reason)] += 1
            continue
        found["compiled"] += 1
        for seed in range(ANSWERS):
            answer = walker.answer(form, seed)
            if answer is None:
                failed += walker.failed
                found["without end; asked again with bounded texts"] += 1
                answer = walker.answer(form_for(bounded(schema)), seed, LONGER)
            result = came_to(text, answer)
            found[result] += 1
            if result != "valid":
                wrong[result].append(f"{name}, {seed}")
    reasons = [f"{count}: {reason}" for reason, count in refused.most_common()]
    print(f"\n{dict(found)}", *reasons, wrong["cut"], sep="\n")
    assert found["compiled"] + found["refused"] == len(KINDS) * OF_A_KIND
    assert found["compiled"] >= 0.9 * len(KINDS) * OF_A_KIND and not found["invalid"] and not found["no JSON"], wrong
    assert not failed, "what was checked can be followed"
