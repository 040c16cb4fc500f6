"""Both tiers on blocks: what is found marks every block it touches, and what follows a private block is private."""

from __future__ import annotations

import pytest

from cloister.detection.known_prefixes import SYSTEM_PROMPTS, known_until, prefixes_of
from cloister.detection.pipeline import Pipeline, Verdict, blocks_of, even_blocks, inherit, shipped_pipeline
from cloister.detection.rules import RuleSet, read_rules
from cloister.detection.tagger import shipped_tagger
from cloister.errors import InvalidRequest
from cloister.messages.controller_detector import Category, Label
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer


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


def test_what_a_block_is_called_depends_on_what_follows_it(pipeline: Pipeline) -> None:
    """So a request waits for its own label: that the same beginning of another prompt was passed does not say that this
    one's is (controller.routes.shared)."""
    start = "Write a function that sorts a list of numbers, then for sunny.day@"
    first = []
    for rest in ("example.org explain how long it takes.", " explain how long it takes, and for whom."):
        first.append(labels(pipeline, start + rest, [len(start), len(start + rest)])[0])
    assert first == [Label.PRIVATE, Label.PUBLIC]


def test_private_and_uncertain_are_inherited() -> None:
    row = [Verdict(label, 2, Category.NAME, 0.5) for label in (Label.PUBLIC, Label.UNCERTAIN, Label.PUBLIC)]
    row += [Verdict(Label.PRIVATE, 1, Category.NAME, 1.0), Verdict(Label.PUBLIC, 0, Category.NONE, 0.0)]
    got = inherit(row)
    assert [each.label for each in got] == [2, 1, 1, 0, 0]
    assert [each.category for each in got][2::2] == [Category.INHERITED] * 2


def test_what_the_models_template_writes_by_itself_is_known_as_a_whole(smollm_folder: ModelFolder) -> None:
    tokenizer = Tokenizer(smollm_folder)
    openings = prefixes_of(tokenizer)
    assert set(openings) == set(OPENINGS) - set(SYSTEM_PROMPTS)
    text = tokenizer.decode(tokenizer.render_chat([{"role": "user", "content": "hi"}]))
    assert known_until(text, openings) == text.index("hi")
    other = [{"role": "system", "content": "Be Ada."}, {"role": "user", "content": "hi"}]
    text = tokenizer.decode(tokenizer.render_chat(other))
    assert known_until(text, openings) == text.index("Be Ada.")


class Template:
    """Writes what it is told around a chat; refuses system prompts where it has no place for them."""

    def __init__(self, before: str, system: str | None) -> None:
        self._before, self._system = before, system

    def render_chat(self, messages: list[dict[str, str]]) -> list[int]:
        first = messages[0]["content"] if len(messages) > 1 else ""
        if first and self._system is None:
            raise InvalidRequest("no")
        head = (self._system or "").format(first) if first else ""
        return list(map(ord, f"{head}{self._before}{messages[-1]['content']}."))

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


def test_any_template_gives_its_own_openings_and_never_anybodys_words() -> None:
    assert prefixes_of(Template("[ask] ", None)) == ("[ask] ",)
    assert set(prefixes_of(Template("[ask] ", "<<{}>>"))) == {
        *("[ask] ", "<<"),
        *("<<You are a helpful assistant.", "<<You are a helpful assistant.>>[ask] "),
    }
    assert prefixes_of(Template("", None)) == ()
    assert prefixes_of(Template("x" * 10_000, None)) == (), "too long to be told"


DEFAULT = "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\nuser\n"
HELPFUL = "system\nYou are a helpful assistant."
OPENINGS = (*SYSTEM_PROMPTS, DEFAULT, HELPFUL, f"{HELPFUL}\nuser\n", "system\n")


@pytest.fixture(scope="module")
def knowing() -> Pipeline:
    """Both tiers, with what SmolLM2's template writes."""
    made = Pipeline(shipped_pipeline().rules, shipped_tagger())
    made.known_prefixes = OPENINGS
    return made


@pytest.mark.parametrize("opening", [DEFAULT, *SYSTEM_PROMPTS, HELPFUL])
def test_a_known_opening_is_public_letter_by_letter_and_nowhere_else(knowing: Pipeline, opening: str) -> None:
    pipeline = knowing
    ends = [len(opening), len(opening) + 30]
    text = opening + " Margaret Brown asked for this "[:30]
    assert labels(pipeline, text, ends)[0] is Label.PUBLIC
    assert labels(pipeline, text, ends)[1] is not Label.PUBLIC, "what comes after it is examined"
    assert known_until("Hello! " + opening, OPENINGS) == known_until(opening.upper(), OPENINGS) == 0
    assert known_until(opening[:-1], OPENINGS) < len(opening) - 1


def test_a_word_that_goes_beyond_an_opening_and_one_that_stands_elsewhere_are_examined(knowing: Pipeline) -> None:
    pipeline = knowing
    named = DEFAULT.replace("SmolLM", "Margaret Brown")
    assert labels(pipeline, named, [len(named)]) != [Label.PUBLIC]
    longer = HELPFUL + "yson Margaret"
    found = {longer[each.start : each.end] for each in pipeline.examine(longer, [len(longer)]).findings}
    assert "Margaret" in found


def test_rules_hold_back_a_known_opening_too() -> None:
    words = 'version = 1\n[[rule]]\nid = "own"\ncategory = "blacklist"\nwords = ["Hugging Face"]\n'
    assert labels(Pipeline(RuleSet(read_rules(words)), None), DEFAULT, [len(DEFAULT)]) == [Label.PRIVATE]


def test_blocks_of_a_span() -> None:
    assert list(blocks_of(0, 3, [3, 6])) == [0]
    assert list(blocks_of(2, 4, [3, 6])) == [0, 1]
    assert list(blocks_of(3, 3, [3, 6])) == [1]
    assert list(blocks_of(9, 12, [3, 6])) == []


def test_an_empty_text_has_no_blocks(pipeline: Pipeline) -> None:
    assert even_blocks("") == [] and pipeline.examine("", []).verdicts == []
