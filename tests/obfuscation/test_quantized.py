"""From a marked text to λ+1 of them: plausible by the model, alike everywhere, and an alert where there are too few."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import PromptTooLong, SetupError, TagsInvalid, TooFewCandidates
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import Quantization
from cloister.obfuscation.index import Prf
from cloister.obfuscation.language_model import TokenShapes, _joined, shape_of
from cloister.obfuscation.quantized import QuantizedSampler
from cloister.obfuscation.tags import parse_redacted
from cloister.obfuscation.variants import GivenSubstitutes, Substitutes, Variants, make_variants
from tests.obfuscation.fake_model import FAMILIES, NAMES, TOWNS, RuleModel, WordTokenizer

SECRET = bytes(32)
LETTER = (
    f'Dear <redacted category="name">{NAMES[0]} {FAMILIES[0]}</redacted>, come to '
    f'<redacted category="place">{TOWNS[0]}</redacted>. Yours, {NAMES[0]} {FAMILIES[0]}'
)


def sampler(wish: SamplingGoal | None = None, *, max_context: int = 4096, seed: int = 0) -> QuantizedSampler:
    tokenizer = WordTokenizer()
    model = RuleModel(tokenizer.vocabulary, seed, max_context)
    goal = wish or SamplingGoal(3, quantization=Quantization(0.5, 64, distance="absolute"))
    return QuantizedSampler(model, tokenizer, goal, Prf(SECRET), TokenShapes(tokenizer, model.vocabulary))


def variants_of(text: str, wish: SamplingGoal | None = None) -> Variants:
    return make_variants([parse_redacted(text)], sampler(wish))


def test_every_variant_says_another_value_everywhere_and_leaves_the_rest() -> None:
    made = variants_of(LETTER)
    texts = [text for (text,) in made.texts]
    assert texts[0] == f"Dear {NAMES[0]} {FAMILIES[0]}, come to {TOWNS[0]}. Yours, {NAMES[0]} {FAMILIES[0]}"
    assert len(set(texts)) == len(made) == 4
    for values, text in zip(made.substitutes.values, texts[1:], strict=True):
        name, town = values
        assert text == f"Dear {name}, come to {town}. Yours, {name}"
        assert shape_of(name) == "Aa Aa" and shape_of(town) == "Aa"
        assert NAMES[0] + " " + FAMILIES[0] not in text and TOWNS[0] not in text
    for column in zip(*made.substitutes.values, strict=True):
        assert len(set(column)) == 3
    logprobs = made.substitutes.logprobs
    assert len(logprobs) == 4 and all(abs(math.exp(each) - math.exp(logprobs[0])) < 0.5 for each in logprobs)
    shown = {"category": "name", "mentions": 2, "method": "gqs"}
    assert made.report()["lambda"] == 3 and made.report()["secrets"][0] == shown


@pytest.mark.parametrize("number", range(4))
def test_no_two_prompts_have_a_word_of_a_secret_in_common(number: int) -> None:
    """What most of them said would be the real one's; what one alone did not say, too."""
    text = f"Dear Dr. <redacted>Dr. {NAMES[number]} {FAMILIES[3]}</redacted>, hello"
    made = variants_of(text, SamplingGoal(6, quantization=Quantization(1.0, 64, distance="absolute")))
    names = [text.removeprefix("Dear Dr. ").removesuffix(", hello").split() for (text,) in made.texts]
    titles, first, family = zip(*names, strict=True)
    assert set(titles) == {"Dr."}, "what names nobody stays"
    assert len(set(first)) == len(set(family)) == len(made) == 7


def test_without_a_secret_there_is_one_text_and_no_model_is_asked() -> None:
    made = make_variants([parse_redacted("Nothing to hide.")], GivenSubstitutes([]))
    assert made.texts == (("Nothing to hide.",),) and not made.entities


def test_the_alert_names_the_secret_what_was_found_and_what_to_change() -> None:
    # Three numbers of two digits are known to the model: two of them may stand in for the third.
    wish = SamplingGoal(5, quantization=Quantization(1.0, 64, distance="absolute"))
    with pytest.raises(TooFewCandidates) as alert:
        variants_of('I am <redacted category="age">17</redacted> and live in Ghent', wish)
    assert (alert.value.span, alert.value.found) == (1, 2) and alert.value.code == "too_few_candidates"
    assert "Secret 1 (age) has 2" in alert.value.message and "17" not in str(alert.value)
    assert alert.value.hint and "λ_min" in alert.value.hint and "temperature" in alert.value.hint
    with pytest.raises(TooFewCandidates) as second:
        variants_of(f"Dear <redacted>{NAMES[0]} {FAMILIES[0]}</redacted>, aged <redacted>17</redacted>, hello", wish)
    assert second.value.span == 2
    made = variants_of("I am <redacted>17</redacted> years old", SamplingGoal(5, 2, wish.quantization))
    assert sorted(text for (text,) in made.texts[1:]) == ["I am 18 years old", "I am 19 years old"]


def test_a_secret_that_is_the_whole_prompt_is_refused() -> None:
    with pytest.raises(TagsInvalid, match="whole prompt"):
        variants_of(f"<redacted>{NAMES[0]} {FAMILIES[0]}</redacted>.")


def test_a_secret_longer_than_the_context_is_refused() -> None:
    text = f"Dear <redacted>{' '.join([NAMES[0]] * 300)}</redacted>, hello"
    with pytest.raises(PromptTooLong, match="context"):
        make_variants([parse_redacted(text)], sampler(max_context=200))


def test_a_mark_within_a_word_is_refused() -> None:
    with pytest.raises(TagsInvalid, match="within a word"):
        variants_of(f"Dear {NAMES[0][:2]}<redacted>{NAMES[0][2:]}</redacted>, hello")


def test_the_same_secret_draws_the_same_and_another_one_draws_others() -> None:
    text = [parse_redacted(LETTER)]
    tokenizer = WordTokenizer()
    model = RuleModel(tokenizer.vocabulary)
    wish = SamplingGoal(3, quantization=Quantization(0.5, 64, distance="absolute"))

    shapes = TokenShapes(tokenizer, model.vocabulary)

    def drawn(number: int) -> object:
        prf = Prf(bytes([number]) * 32)
        return make_variants(text, QuantizedSampler(model, tokenizer, wish, prf, shapes)).texts

    assert drawn(0) == drawn(0) and len({drawn(number) for number in range(6)}) > 1


def test_shapes() -> None:
    assert shape_of("Mrs. Ann Lee") == "Aa. Aa Aa" and shape_of("3rd May 2019") == "0a Aa 0000"
    assert shape_of("Maria") == "Aa" and shape_of("ITalia") == "AAa" and shape_of("MARIA") == shape_of("USA") == "AA"
    assert shape_of("47") == "00" and not {shape_of("4²"), shape_of("¹3"), shape_of("٤٧")} & {"00"}
    tokenizer = WordTokenizer()
    shapes = TokenShapes(tokenizer, tokenizer.vocabulary)
    following = shapes.following("", " Aa Aa", False)
    assert {tokenizer.decode([token])[0] for token in following.nonzero()[0]} == {" "}
    assert not following[tokenizer.special[0]] and not shapes.following("", " 00", True)[tokenizer.encode(" Towna")[0]]
    assert shapes.following("", " 00", True).sum() == 3 and not shapes.following("", " 00 Aa", True).any()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "1 to 512"),
        ([["a"]], "each of the 2"),
        ([["A B", ""]], "secret 2 is empty"),
        ([["A B", " C"]], "secret 2 is empty"),
        ([["A B", "x" * 513]], "too long"),
        ([["A <redacted>B", "C"]], "secret 1 is empty"),
        ([["A B", "C"], ["a b", "D"]], "secret 1 comes twice"),
        ([["A B", TOWNS[0].upper()]], "secret 2 comes twice"),
        ([["A B", 7]], "secret 2 is empty"),
    ],
)
def test_given_substitutes_are_checked_for_their_shape(values: list[list[str]], said: str) -> None:
    with pytest.raises(TagsInvalid, match=said):
        make_variants([parse_redacted(LETTER)], GivenSubstitutes(values))


def test_given_substitutes_are_taken() -> None:
    made = make_variants([parse_redacted(LETTER)], GivenSubstitutes([["Ann Lee", "Ghent"], ["Jo Fox", "Lund"]]))
    assert made.texts[1] == ("Dear Ann Lee, come to Ghent. Yours, Ann Lee",) and len(made) == 3
    assert made.report()["posterior_of_real"] is None


@pytest.mark.parametrize("wrong", [(0, None), (3, 4), (513, None), (3, 0)])
def test_a_wish_that_cannot_be_is_refused(wrong: tuple[int, int | None]) -> None:
    with pytest.raises(SetupError):
        SamplingGoal(*wrong)


def test_what_a_guess_by_the_sampling_model_is_worth_is_computed_from_its_probabilities() -> None:
    """ε does not bound it: values of tiny probabilities differ by less than any ε, and one may be much likelier."""
    told = Substitutes((("Bo",), ("Cy",)), (math.log(1e-9), math.log(7e-9), math.log(2e-9)), (0.0, 0.0, 0.0))
    assert told.posterior == pytest.approx((0.1, 0.7, 0.2))
    report = variants_of(LETTER).report()
    assert 1 / (1 + report["lambda"]) <= report["posterior_of_likeliest"] < 1
    assert 0 < report["posterior_of_real"] <= report["posterior_of_likeliest"]


def test_nothing_of_the_prompt_shows_in_what_may_be_printed() -> None:
    made = variants_of(LETTER)
    for shown in (repr(made), repr(made.substitutes), repr(made.entities), repr(parse_redacted(LETTER))):
        assert NAMES[0] not in shown and TOWNS[0] not in shown


@given(st.text(max_size=8), st.text(max_size=8))
def test_the_shape_of_a_text_is_made_of_its_pieces_shapes(one: str, other: str) -> None:
    assert _joined(shape_of(one), shape_of(other)) == shape_of(one + other)
