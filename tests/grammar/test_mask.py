"""Whatever the mask leaves is right: any walk through it ends in a text of the form, and at no other place."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import pytest
import torch

from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import NativeKernels
from cloister.grammar.constraint import json_part
from cloister.grammar.mask import Mask
from cloister.prompts.tokenizer import Tokenizer
from tests.grammar.schemas import FORMATS, SCHEMAS

WALK = 400  # tokens


def left(mask: Mask, words: Tokenizer, held: tuple[int, ...] = ()) -> torch.Tensor:
    row = torch.zeros(words.vocabulary)
    mask.apply(row, held)
    return row.isfinite().nonzero().flatten()


def allowed(mask: Mask, words: Tokenizer, held: tuple[int, ...] = ()) -> list[int]:
    return left(mask, words, held).tolist()  # type: ignore[no-any-return]


def feed(mask: Mask, words: Tokenizer, text: str) -> Mask:
    for token in words.encode(text):
        mask.note(token)
    return mask


def walk(form: str, words: Tokenizer, seed: int) -> str:
    """Any token that is allowed, a short one rather than a long one, until the form ends; after a while one that closes
    something, where it may."""
    drawn, mask, tokens = random.Random(seed), Mask(form, words.stop_tokens), list[int]()
    closing = torch.tensor([*words.stop_tokens, *(words.encode(sign)[0] for sign in '@"}],')])
    while not mask.complete and len(tokens) < WALK:
        here = left(mask, words)
        closers = here[torch.isin(here, closing)] if len(tokens) > 30 else here[:0]
        here = closers if len(closers) else here
        few = [int(here[drawn.randrange(len(here))]) for _ in range(3)]
        token = min(few, key=lambda one: (one not in words.stop_tokens, len(words.token_bytes(one))))
        if token in words.stop_tokens:
            break
        mask.note(token)
        tokens.append(token)
    assert not mask.failed and len(tokens) < WALK
    return b"".join(map(words.token_bytes, tokens)).decode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_any_walk_is_of_the_schema(name: str, words: Tokenizer) -> None:
    form = json.dumps({"json_schema": SCHEMAS[name]})
    for seed in range(2):
        answer = json.loads(walk(form, words, seed))
        jsonschema.validate(answer, SCHEMAS[name], format_checker=FORMATS)


def test_the_sample_is_large_enough() -> None:
    assert len(SCHEMAS) >= 60


@pytest.mark.parametrize("seed", range(4))
def test_other_forms_hold_too(seed: int, words: Tokenizer) -> None:
    assert isinstance(json.loads(walk('{"json_object":true}', words, seed)), dict)
    assert re.fullmatch(r"[0-9]{3}-[a-zé]{2,5}", walk(r'{"regex":"[0-9]{3}-[a-zé]{2,5}"}', words, seed))
    assert walk(json.dumps({"choice": ['a"b', "é\n", "\\d", "%x"]}), words, seed) in ('a"b', "é\n", "\\d", "%x")
    called = walk(json.dumps({"grammar": 'start: "call " ' + json_part({"const": [1, 2]})}), words, seed)
    assert called == "call [1, 2]"


def test_an_end_is_allowed_exactly_where_the_form_is_complete(words: Tokenizer) -> None:
    mask, ends = Mask('{"regex":"a(bc)*"}', words.stop_tokens), set(words.stop_tokens)
    for text, complete in (("a", True), ("b", False), ("c", True)):
        assert not mask.complete
        feed(mask, words, text)
        assert (ends <= set(allowed(mask, words))) == complete and not mask.complete
    feed(mask, words, "b")
    assert not ends & set(allowed(mask, words))


def test_a_form_that_allows_nothing_more_is_complete_without_an_end(words: Tokenizer) -> None:
    mask = feed(Mask('{"choice":["ab"]}', ()), words, "a")
    assert not mask.complete
    assert feed(mask, words, "b").complete


def test_no_other_special_token_is_ever_allowed(words: Tokenizer) -> None:
    mask = Mask('{"regex":"(.|\\n)*"}', words.stop_tokens[:1])
    assert words.special & set(allowed(mask, words)) == set(words.stop_tokens[:1])
    named = {"grammar": "start: <|im_start|>"}
    assert len(allowed(Mask(json.dumps(named), ()), words)) == 1


def test_tokens_that_are_held_back_wait_as_long_as_there_is_another(words: Tokenizer) -> None:
    """Of `min_tokens`: an end is held back, unless the form leaves nothing else."""
    ends = words.stop_tokens
    mask = feed(Mask('{"regex":"a*"}', ends), words, "a")
    assert set(ends) <= set(allowed(mask, words))
    assert not set(ends) & set(allowed(mask, words, ends)) and allowed(mask, words, ends)
    only = words.encode("a")
    assert allowed(Mask('{"regex":"a"}', ends), words, (only[0],)) == only


def test_a_replayed_mask_is_the_same(words: Tokenizer) -> None:
    form = json.dumps({"json_schema": SCHEMAS["an order"]})
    text = walk(form, words, 0)
    first = Mask(form, words.stop_tokens)
    for end, token in enumerate(tokens := words.encode(text)):
        again = Mask(form, words.stop_tokens)
        for before in tokens[:end]:
            again.note(before)
        assert allowed(again, words) == allowed(first, words)
        first.note(token)


def test_the_kernels_own_mask_leaves_the_same(words: Tokenizer) -> None:
    """Also with tokens that are held back, and on a row that is longer or shorter."""
    if find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    kernels, mask = NativeKernels(torch.float32, threads=2), Mask('{"regex":"[a-f]{1,9}"}', words.stop_tokens)
    for _ in range(9):
        for held in ((), words.stop_tokens):
            for width in (words.vocabulary, words.vocabulary + 128, words.vocabulary - 128):
                row = torch.randn(width)
                plainly, masked = row.clone(), row.clone()
                mask.apply(plainly, held)
                mask.apply(masked, held, kernels.mask_row)
                assert torch.equal(plainly, masked)
        mask.note(words.encode("b")[0])
    assert mask.complete


def test_a_mask_raises_nothing_and_says_that_it_failed(words: Tokenizer) -> None:
    assert Mask('{"regex":"("}', ()).failed
    mask = Mask('{"regex":"a"}', words.stop_tokens)
    mask.note(words.encode("z")[0])
    assert mask.failed
    assert len(allowed(mask, words)) == words.vocabulary  # its row is not used


def test_the_row_may_be_longer_or_shorter_than_the_vocabulary(words: Tokenizer) -> None:
    for width in (words.vocabulary + 128, words.vocabulary - 128):
        row = torch.zeros(width)
        Mask('{"choice":["a"]}', words.stop_tokens).apply(row)
        assert torch.isfinite(row).nonzero().flatten().tolist() == words.encode("a")
