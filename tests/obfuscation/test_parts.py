"""A part of a secret that stands alone goes with the secret, or is refused; it is in one variant and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import TagsInvalid, TooFewCandidates
from cloister.obfuscation.entities import add_mentions, entities_of
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import Quantization
from cloister.obfuscation.index import Prf
from cloister.obfuscation.language_model import TokenShapes
from cloister.obfuscation.parts import is_telling, owners_of, refuse_parts, words_in
from cloister.obfuscation.quantized import QuantizedSampler
from cloister.obfuscation.tags import TaggedText, parse_redacted
from cloister.obfuscation.variants import GivenSubstitutes, make_variants
from tests.examples import examples
from tests.obfuscation.fake_model import FAMILIES, NAMES, TOWNS, RuleModel, WordTokenizer

NAME = '<redacted category="name">Dr Margaret Thornbury</redacted>'


def only_fake(text: str, *values: str) -> str:
    made = make_variants([parse_redacted(text)], GivenSubstitutes([values]))
    assert made.texts[0] == (parse_redacted(text).text,), "the real one stays as it is"
    return made.texts[1][0]


@pytest.mark.parametrize(
    ("said", "fake"),
    [
        ("Dr Thornbury is ill.", "Dr Lund is ill."),
        ("Mrs. Thornbury is ill.", "Mrs. Lund is ill."),
        ("Margaret is ill.", "Helga is ill."),
        ("Is Thornbury's car red?", "Is Lund's car red?"),
        ("I like margaret, and THORNBURY too.", "I like helga, and LUND too."),
        ("M. Thornbury, or M Thornbury, signs.", "H. Lund, or H Lund, signs."),
        ("Ask Thornbury, Margaret.", "Ask Lund, Helga."),
        ("Ask Thornbury, M. now.", "Ask Lund, H. now."),
        ("Ask Margaret T. now.", "Ask Helga L. now."),
        ("In short M.T. or M. T., says he.", "In short H.L. or H. L., says he."),
        ("In short <redacted>MT</redacted> or so.", "In short HL or so."),
        ("The Thornburys' house, the Thornburys.", "The Lunds' house, the Lunds."),
        ('Ask <redacted category="name">Thornbury</redacted>.', "Ask Lund."),
        ('Ask <redacted category="name">Mrs Thornbury</redacted>.', "Ask Mrs Lund."),
        ("Ask <redacted>M. Thornbury</redacted>.", "Ask H. Lund."),
    ],
)
def test_a_part_of_a_name_gets_the_matching_part_of_its_substitute(said: str, fake: str) -> None:
    assert only_fake(f"I am {NAME}. {said}", "Dr Helga Lund") == f"I am Dr Helga Lund. {fake}"
    assert only_fake(f"{said} I am {NAME}.", "Dr Helga Lund") == f"{fake} I am Dr Helga Lund."


def test_a_family_has_one_name_in_every_variant() -> None:
    text = 'I am <redacted category="name">Ann Lee</redacted>, he is <redacted category="name">Tom Lee</redacted>: Tom.'
    assert only_fake(text, "Eva Lund", "Jim") == "I am Eva Lund, he is Jim Lund: Jim."
    with pytest.raises(TagsInvalid, match="each of the 2"):
        only_fake(text, "Eva Lund", "Jim", "Lund")


def test_secrets_of_other_kinds_share_their_words_too() -> None:
    text = 'From <redacted category="date">March 2011</redacted> to <redacted category="date">June 2011</redacted>, on.'
    assert only_fake(text, "May 1999", "July 1998") == "From May 1999 to July 1998, on.", "dates are whole (`joint`)"
    text = (
        'Since <redacted category="date">March 2011</redacted>, all of <redacted category="date">2011</redacted>, on.'
    )
    assert only_fake(text, "May 1999") == "Since May 1999, all of 1999, on."
    text = 'At the <redacted category="organisation">University of Ghent</redacted> in <redacted>Ghent</redacted>, yes.'
    assert only_fake(text, "College of Lund") == "At the College of Lund in Lund, yes."


@pytest.mark.parametrize(
    "text",
    [
        'At the <redacted category="organisation">Institute of Ghent</redacted>, near Ghent, yes.',
        'Since <redacted category="date">March 14, 2011</redacted> I am ill, in 2011.',
        "I have <redacted>lung cancer</redacted>. Does cancer hurt?",
        'I am <redacted category="name">Will Long</redacted>. Will you help?',
        f"I am {NAME}, in short MT or so.",
        f'I am {NAME}, he is <redacted category="name">Mark Tull</redacted>, or M.T., yes.',
    ],
)
def test_what_may_or_may_not_be_a_part_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(TagsInvalid, match="outside the marks") as refused:
        make_variants([parse_redacted(text)], GivenSubstitutes([["x"]]))
    assert refused.value.hint and "Mark that word" in refused.value.hint


@pytest.mark.parametrize(
    "text",
    [
        'I am <redacted category="name">Will Long</redacted>. I will not wait long.',
        'At the <redacted category="organisation">Institute of Ghent</redacted>, the best institute of the land.',
        'Since <redacted category="date">March 14, 2011</redacted> I take 14 pills.',
    ],
)
def test_words_of_the_language_and_small_numbers_are_no_parts(text: str) -> None:
    assert len(entities_of(add_mentions([parse_redacted(text)]))[0].parts) == 0
    make_variants([parse_redacted(text)], GivenSubstitutes([["Jo Fox", "x"][:1]]))


def test_substitutes_for_a_secret_with_parts_have_as_many_words() -> None:
    with pytest.raises(TagsInvalid, match="as it has"):
        only_fake(f"I am {NAME}. Margaret.", "Dr Lund")
    assert only_fake(f"I am {NAME}.", "Dr Lund") == "I am Dr Lund."


def test_the_letters_before_a_number_are_no_secret() -> None:
    """Substitutes have them, too: "MRN" beside the number tells nothing."""
    [marked] = add_mentions([parse_redacted('MRN: <redacted category="id">MRN-1001152</redacted>, MRN-1001152.')])
    assert [marked.secret(span) for span in marked.spans] == ["1001152", "1001152"]
    refuse_parts([marked], owners_of([marked]))
    [mail] = add_mentions([parse_redacted('<redacted category="id">ann-12@example.org</redacted> it is')])
    assert [mail.secret(span) for span in mail.spans] == ["ann-12@example.org"]


def test_a_part_of_a_secret_from_earlier_is_one_and_keeps_its_owner() -> None:
    [marked] = add_mentions([TaggedText("What does Dr Thornbury say?")], known=["Margaret Thornbury"])
    [entity] = entities_of([marked], ["Margaret Thornbury"])
    assert (entity.secret, entity.mentions, len(entity.parts)) == ("Margaret Thornbury", (), 1)
    [marked] = add_mentions([parse_redacted("I am <redacted>Margaret Thornbury</redacted>.")], known=["thornbury"])
    assert [marked.secret(span) for span in marked.spans] == ["Margaret", "Thornbury"]


WORDS = (*NAMES[:6], *FAMILIES[:6], *TOWNS[:4])
pieces = st.lists(
    st.one_of(
        st.sampled_from(["and", "Dr", "in", "is", ".", "said", "to"]),
        st.sampled_from(WORDS),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True).map(
            lambda words: f'<redacted category="name">{" ".join(words)}</redacted>'
        ),
    ),
    min_size=2,
    max_size=8,
).map(lambda some: "Hello " + " ".join(some) + " end")


@given(pieces, st.integers(0, 3))
@examples(40)
def test_no_variant_has_a_part_of_another_one_s_values(text: str, seed: int) -> None:
    tokenizer = WordTokenizer()
    model = RuleModel(tokenizer.vocabulary, seed)
    wish = SamplingGoal(3, 1, Quantization(1.0, 64, distance="absolute"))
    shapes = TokenShapes(tokenizer, model.vocabulary)
    try:
        made = make_variants([parse_redacted(text)], QuantizedSampler(model, tokenizer, wish, Prf(bytes(32)), shapes))
    except (TagsInvalid, TooFewCandidates):
        return
    values = [tuple(entity.secret for entity in made.entities), *made.substitutes.values]
    said = [{found[0].casefold() for found in words_in(variant)} for (variant,) in made.texts]
    for mine, own in enumerate(values if made.entities else ()):
        parts = {found[0].casefold() for value in own for found in words_in(value) if is_telling(found[0])}
        for other, words in enumerate(said):
            assert other == mine or not parts & words, "a part stands in two variants"
