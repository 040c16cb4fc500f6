"""A person is one entity, however mentioned: every variant is as consistent as the real one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import TagsInvalid
from cloister.obfuscation import entities as module
from cloister.obfuscation.entities import Entity, add_mentions, entities_of, replaced, swapped
from cloister.obfuscation.parts import owners_of, parts_of, refuse_parts
from cloister.obfuscation.skeleton import reads_alike, skeleton_of
from cloister.obfuscation.tags import TaggedText, parse_redacted
from tests.examples import examples


def marked(name: str) -> str:
    return f'<redacted category="name">{name}</redacted>'


def read(text: str) -> tuple[list[TaggedText], list[Entity]]:
    texts = add_mentions([parse_redacted(text)])
    refuse_parts(texts, owners_of(texts))
    return texts, entities_of(texts)


def fake(text: str, *values: str) -> str:
    texts, entities = read(text)
    return replaced(texts, entities, values)[0]


def test_full_name_title_and_surname_and_first_name_all_marked_are_one() -> None:
    text = f"{marked('Martha Collins')} is ill. {marked('Ms. Collins')} coughs. {marked('Martha')} says so."
    assert fake(text, "Eva Lund") == "Eva Lund is ill. Ms. Lund coughs. Eva says so."


@pytest.mark.parametrize("said", ["Ms. Collins coughs.", "Martha coughs.", "M. Collins coughs.", "Collins' dog, M.C."])
def test_an_unmarked_mention_does_not_go_out_as_it_is(said: str) -> None:
    shown = fake(f"{marked('Martha Collins')} is ill. {said}", "Eva Jones")
    assert "Martha" not in shown and "Collins" not in shown and "M." not in shown and "C." not in shown


def test_a_first_name_before_a_marked_surname_is_of_the_same_person() -> None:
    text = f"Martha Collins is ill. {marked('Ms. Collins')} coughs. Martha says so."
    assert fake(text, "Eva Lund") == "Eva Lund is ill. Ms. Lund coughs. Eva says so."
    text = f"Today Collins is ill. {marked('Ms. Collins')} coughs."
    assert fake(text, "Ms. Lund") == "Today Lund is ill. Ms. Lund coughs.", "no name"
    assert fake(f"I am {marked('Ann')}. Hi Ann! Mary Ann?", "Eva") == "I am Eva. Hi Eva! Mary Eva?", "no surname"
    text = f"{marked('Martha Collins')} is ill: Martha Jane Collins."
    assert fake(text, "Eva Helga Lund") == "Eva Lund is ill: Eva Helga Lund."


def test_two_marks_that_stand_side_by_side_somewhere_are_one_name() -> None:
    text = f"{marked('Martha')} says so. {marked('Ms. Collins')} coughs. Martha Collins is ill."
    assert fake(text, "Eva Lund") == "Eva says so. Ms. Lund coughs. Eva Lund is ill."


def test_an_everyday_surname_goes_with_its_title() -> None:
    text = f"{marked('Ada Brown')} is ill. Ms. Brown has a brown dog, the Browns have two."
    assert fake(text, "Eva Lund") == "Eva Lund is ill. Ms. Lund has a brown dog, the Lunds have two."


def test_apostrophes_are_one_whichever_they_are() -> None:
    assert fake(f"{marked('Ann O’Brien')} is ill. O'Brien coughs.", "Eva Lund") == "Eva Lund is ill. Lund coughs."


def test_initials_mark_no_other_letters() -> None:
    shown = fake(f"{marked('Martha Collins')} takes vitamin C. {marked('M. Collins')} has C and M.", "Eva Lund")
    assert shown == "Eva Lund takes vitamin C. E. Lund has C and M."


@pytest.mark.parametrize(
    ("address", "other"),
    [
        ("martha.collins52@x.org", "eva.lund52@x.org"),
        ("mcollins@x.org", "elund@x.org"),
        ("m.collins@x.org", "e.lund@x.org"),
        ("marthacollins@x.org", "evalund@x.org"),
        ("info@x.org", "info@x.org"),
    ],
)
def test_an_unmarked_address_says_the_name_of_its_variant(address: str, other: str) -> None:
    assert fake(f"{marked('Martha Collins')}: {address}, yes.", "Eva Lund") == f"Eva Lund: {other}, yes."


@pytest.mark.parametrize(
    ("text", "fits", "fails"),
    [
        (f"{marked('Ada Collins')}: Collins' dog.", "Eva Jones", "Eva Lund"),
        (f"{marked('Ada Thorn')}: the Thorns.", "Eva Lund", "Eva Jones"),
        ('An <redacted category="age">80</redacted>-year-old.', "11", "70"),
        ('A <redacted category="age">70</redacted>-year-old.', "66", "80"),
        ('Took an <redacted category="medication">aspirin</redacted>.', "ibuprofen", "paracetamol"),
        (f"{marked('Ada Thorn')} is ill. Dr. Thorn was there, in May.", "Eva Lund", "Ada May"),
    ],
)
def test_a_value_that_does_not_agree_with_the_words_beside_it_is_none(text: str, fits: str, fails: str) -> None:
    texts, entities = read(text)
    form = skeleton_of(texts)
    assert reads_alike(texts, entities, [fits], form) and not reads_alike(texts, entities, [fails], form)


FIRST, LAST = ("Margaret", "Helga", "Dorothy", "Susan"), ("Thornbury", "Lund", "Garner", "Patton")
FORMS = (
    "{f} {l}",
    "Ms. {l}",
    "{f}",
    "{l}, {f}",
    "{i}. {l}",
    "{l}'s dog",
    "the {l}s",
    "{i}.{j}.",
    "{l}, {i}.",
    "Dr {f} {l}",
)
mentions = st.lists(st.tuples(st.sampled_from(FORMS), st.booleans()), min_size=1, max_size=6)


def spelt(form: str, first: str, last: str) -> str:
    return form.format(f=first, l=last, i=first[0], j=last[0])


@given(mentions, st.permutations(range(4)))
@examples(80)
def test_every_variant_is_what_its_own_user_would_have_sent(forms: list[tuple[str, bool]], order: list[int]) -> None:
    """Each form, marked or not, beside a marked full name: the variant with another name is the text written for it,
    and read again it has the same structure."""
    (first, last), (other, family) = ((FIRST[at], LAST[at]) for at in order[:2])

    def written(first: str, last: str) -> str:
        said = (spelt(form, first, last) for form, _ in forms)
        shown = (marked(one) if mark and "'s" not in one else one for one, (_, mark) in zip(said, forms, strict=True))
        return f"{marked(f'{first} {last}')} came; then {' and '.join(shown)} came"

    texts, entities = read(written(first, last))
    assert [parts_of(entity.secret) for entity in entities] == [(first, last)]
    variant = swapped(texts, entities, [entities[0].secret.replace(first, other).replace(last, family)])
    assert [text.text for text in variant] == [parse_redacted(written(other, family)).text]
    assert skeleton_of(variant) == skeleton_of(texts) == skeleton_of([parse_redacted(written(other, family))])


def test_the_property_fails_where_parts_are_not_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "link_parts", lambda text, owners: text)
    with pytest.raises((AssertionError, TagsInvalid)):
        test_every_variant_is_what_its_own_user_would_have_sent.hypothesis.inner_test(  # type: ignore[attr-defined]
            [("Ms. {l}", False)], [0, 1, 2, 3]
        )
