"""A pool is a cell of a partition: each member would have got it. So it tells nothing of which member is real."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.obfuscation.candidates import places
from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Cells
from cloister.obfuscation.candidates.medications import MEDICATIONS
from cloister.obfuscation.candidates.names import LISTS, PARTICLES, SUFFIXES, TITLES, TURNS
from cloister.obfuscation.candidates.organisations import BODIES, COMPANIES
from cloister.obfuscation.candidates.vocabularies import OCCUPATIONS, VOCABULARIES, load
from cloister.obfuscation.index import Prf
from cloister.obfuscation.language_model import shape_of
from cloister.obfuscation.parts import is_telling, words_in
from cloister.obfuscation.tags import Category

AROUND = Around(wanted=24)
DRAW = Prf(bytes(32))
FEWEST, MOST = 12, 64
load()


def pool(category: Category, secret: str) -> Pool | None:
    return VOCABULARIES[category].pool(secret, AROUND, DRAW)


def check(category: Category, secret: str, *, fewest: int = FEWEST) -> Pool:
    found = pool(category, secret)
    assert found is not None and secret in found.values and fewest <= len(found.values) <= MOST, found
    assert len(set(found.values)) == len(found.values)
    for value in found.values[:: max(1, len(found.values) // 6)]:
        other = pool(category, value)
        assert other is not None and other.values == found.values
    return found


def words_of(kind: str) -> st.SearchStrategy[str]:
    """Without those that are titles or suffixes too (Major, Sister): they stay."""
    stays = TITLES | SUFFIXES | PARTICLES
    return st.sampled_from([word for _, cell in LISTS[kind] for word in cell if word.lower() not in stays])


CAPITALS = st.sampled_from((str, str.upper, str.lower))
PERSONS = st.sampled_from(
    (
        "{given} {surname}",
        "{surname}, {given}",
        "{surname}, {given} B.",
        "Dr. {surname}",
        "Mrs. {given} {surname}",
        "{given} T. {surname}",
        "J. {surname}",
        "{given} {surname} Jr.",
        "{given} {surname}-{other}",
        "{given} van der {surname}",
        "Prof. {given} {middle} {surname}, MD",
        "{single}",
        "{single}'s",
    )
)


@settings(max_examples=60, deadline=None)
@given(PERSONS, words_of("given"), words_of("given"), words_of("surname"), words_of("surname"), words_of("single"))
def test_names(form: str, given: str, middle: str, surname: str, other: str, single: str) -> None:
    secret = form.format(given=given, middle=middle, surname=surname, other=other, single=single)
    found = check(Category.NAME, secret, fewest=FEWEST if "-" not in form and "middle" not in form else 2)
    words = Counter(
        w for value in found.values for w in {each[0].casefold() for each in words_in(value)} if is_telling(w)
    )
    stay = ("prof", "jr", "md", "van", "der", "mrs", "dr")
    assert all(count <= 3 * TURNS or word in stay for word, count in words.items())
    assert len({shape_of(value) for value in found.values}) == 1


@pytest.mark.parametrize(
    ("secret", "kind"),
    [
        ("Nathalie Leroy", "given name french female + surname french"),
        ("Leroy, Thomas", "surname french + given name french male"),
        ("Daniel Lopez", "given name spanish male + surname spanish"),
        ("Kevin Nguyen", "given name american male + surname east-asian"),
        ("hans.schmidt7@gmail.com", "e-mail address of a person"),
    ],
)
def test_a_full_name_is_of_one_culture_where_it_can_be(secret: str, kind: str) -> None:
    """Thomas and Daniel are first of all American names: beside a French or Spanish surname they are of its culture."""
    category = Category.ID if "@" in secret else Category.NAME
    found = check(category, secret, fewest=8)
    assert found.kind == kind
    assert "american" in kind or not any("anthony" in value.lower() for value in found.values)


def test_no_member_of_a_pool_is_of_a_culture_that_comes_first() -> None:
    """Of 32 German pairs some are American through and through: each of these would have got another pool."""
    found = check(Category.NAME, "Hans Schmidt")
    assert len(found.values) < 32 and {pool(Category.NAME, value) for value in found.values} == {found}


@settings(max_examples=20, deadline=None)
@given(CAPITALS, words_of("given"), words_of("surname"))
def test_names_keep_their_capitals(spell: type[str], given: str, surname: str) -> None:
    secret = spell(f"{given} {surname}")
    assert {value == spell(value) for value in check(Category.NAME, secret).values} == {True}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_are_partitions(kind: str) -> None:
    cells = list(LISTS[kind])
    words = [word for _, cell in cells for word in cell]
    assert len(set(words)) == len(words) > 40_000 and {len(cell) for _, cell in cells} == {16, 32, 64}
    assert all(len({shape_of(word) for word in cell}) == 1 for _, cell in cells)


NUMERIC = ("%m/%d/%Y", "%d.%m.%Y", "%Y-%m-%d", "%m/%d/%y", "%-m/%-d/%Y", "%-d.%-m.%Y", "%Y%m%d", "%m-%d-%Y")
WORDS = (
    "%B %-d, %Y",
    "%-d %B %Y",
    "%b %-d, %Y",
    "%A, %B %-d, %Y",
    "%B %-d",
    "%-d. %B",
    "%Y",
    "%B %Y",
    "%m/%Y",
    "%d %b %Y",
)


@settings(max_examples=60, deadline=None)
@given(st.dates(date(1900, 1, 1), date(2040, 12, 31)), st.sampled_from(NUMERIC + WORDS))
def test_dates(day: date, form: str) -> None:
    found = check(Category.DATE, day.strftime(form), fewest=8)
    year = f"{day.year:04}"[-2:] if "%y" in form else f"{day.year:04}"
    if form in NUMERIC:
        every = [date(day.year, 1, 1) + timedelta(each) for each in range(366)]
        spelt = {each.strftime(padded) for each in every for padded in (form, form.replace("%-", "%"))}
        assert {*found.values} <= spelt | {day.strftime(form)}, "a value is not in the calendar"
        assert all(year in value for value in found.values)
    assert len({re.sub(r"[^\W\d]+", "a", shape_of(value)) for value in found.values}) == 1


@pytest.mark.parametrize("secret", ["2/29/2019", "28/26/2019", "31 April 2020", "13.13.2020", "²/3/2019", "yesterday"])
def test_what_no_calendar_has_gets_no_pool(secret: str) -> None:
    assert pool(Category.DATE, secret) is None


@pytest.mark.parametrize(
    "secret",
    [
        "2019-03-14T06:35:00Z",
        "2019-03-14 06:35:17",
        "3/14/2019 10:30 AM",
        "10:30 am",
        "21:07",
        "May 3rd",
        "Sept. 14, 2019",
    ],
)
def test_times_and_rare_spellings(secret: str) -> None:
    check(Category.DATE, secret, fewest=9)


AGES = st.sampled_from(("{}", "{}-year-old", "{} years old", "{}yo", "aged {}", "{} y/o", "{} year old"))


@settings(deadline=None)
@given(st.integers(2, 110), AGES)
def test_ages(age: int, form: str) -> None:
    check(Category.AGE, form.format(age))


@pytest.mark.parametrize("secret", ["3 months", "6-week-old", "forty-seven", "Twenty five", "seventy-year-old"])
def test_ages_of_babies_and_in_words(secret: str) -> None:
    check(Category.AGE, secret)


PLACES_KNOWN = [
    "Boston",
    "CHICAGO",
    "Paris",
    "OSLO",
    "Lyon",
    "Massachusetts",
    "France",
    "Boston, MA",
    "Boston, Massachusetts",
    "02115",
    "123 Main Street",
]
KNOWN = {
    Category.PLACE: [*PLACES_KNOWN, "1423 Oak St, Springfield, IL", "12 N. Oak Ave., Apt 4"],
    Category.ORGANISATION: [
        *("Boston General Hospital", "St. Thomas Memorial Hospital", "Smith & Jones LLC", "University of Louisville"),
        *("Johnson, Miller and Brown", "Walter Reed Medical Center", "Morgan Stanley", "Williams Inc"),
        *("Siemens", "Stanford University", "Deutsche Bank", "Mayo Clinic"),
    ],
    Category.MEDICATION: ["lisinopril", "Lisinopril", "LIPITOR", "doxycycline", "hydrocodone/acetaminophen"],
}


@pytest.mark.parametrize(("category", "secret"), [(each, secret) for each, known in KNOWN.items() for secret in known])
def test_places_organisations_medications(category: Category, secret: str) -> None:
    check(category, secret, fewest=8 if category is Category.MEDICATION else FEWEST)


@pytest.mark.parametrize(
    "cells", [places.PLACES, places.CITIES, places.TOWNS, places.STREETS, COMPANIES, MEDICATIONS, BODIES, OCCUPATIONS]
)
def test_other_lists_are_partitions(cells: Cells) -> None:
    words = [word.lower() for _, cell in cells for word in cell]
    fewest = 8 if cells is MEDICATIONS else FEWEST
    assert len(set(words)) == len(words) and all(len(cell) >= fewest for _, cell in cells)


def test_a_zip_code_is_one_of_its_town() -> None:
    found = pool(Category.PLACE, "Boston, MA 02115")
    assert found is not None and len(found.values) >= FEWEST and "Boston, MA 02115" in found.values
    assert len({value[-8:-6] for value in found.values}) > 4
    assert pool(Category.PLACE, "Boston, MA 90210") is None


def test_a_medication_whose_form_or_dose_stands_apart_is_refused() -> None:
    """Hydrocortisone comes in no 0.1% cream: whoever knows would take the one that does."""
    for after in (" 0.1% cream daily", " 2% gel", " ointment", " dose being 4 mg in the morning"):
        assert VOCABULARIES[Category.MEDICATION].pool("triamcinolone", Around("", after), DRAW) is None, after
    assert VOCABULARIES[Category.MEDICATION].pool("triamcinolone", Around("", " and rest"), DRAW) is not None


def test_a_medication_is_among_drugs_about_as_common() -> None:
    found = VOCABULARIES[Category.MEDICATION].pool("ibuprofen", Around(wanted=16), DRAW)
    assert found is not None and {"acetaminophen", "naproxen", "aspirin", "paracetamol"} <= {*found.values}
    assert 8 <= len(found.values) < 16 and "nepafenac" not in found.values


def test_a_medication_keeps_its_class() -> None:
    assert {"losartan", "enalapril"} <= {*check(Category.MEDICATION, "lisinopril").values}
    for dosed in ("Lisinopril 10mg", "metoprolol 25 mg twice daily", "Sertraline 50mg", "albuterol inhaler"):
        check(Category.MEDICATION, dosed, fewest=8)
    assert pool(Category.MEDICATION, "Lisinopril 75mg") is None, "nobody sells this"
    found = pool(Category.MEDICATION, "Lisinopril 20mg")
    assert found is not None and {"Losartan 50mg", "Atenolol 50mg"} & {*found.values}, "each in its own strength"
    sold = VOCABULARIES[Category.MEDICATION].pool("lisinopril", Around("", " 5 mg daily"), DRAW)
    assert sold is not None and "losartan" not in sold.values and "ramipril" in sold.values, "the dose is not marked"


@pytest.mark.parametrize("category", VOCABULARIES)
@pytest.mark.parametrize("secret", ["a" * 512, "1" * 512, "Ann " * 128, "", " ", "|", "\n", "Xqzzt Vwrrk", "¹²³", "☃"])
def test_what_is_in_no_vocabulary_gets_no_pool(category: Category, secret: str) -> None:
    assert pool(category, secret) is None


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(VOCABULARIES)), st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_is_answered(category: Category, secret: str) -> None:
    found = pool(category, secret)
    assert found is None or secret in found.values


LARGE = [
    (Category.NAME, "James Jones"),
    (Category.NAME, "james"),
    (Category.PLACE, "Boston"),
    (Category.DATE, "03/14"),
]


@pytest.mark.parametrize(("category", "secret"), LARGE)
def test_where_more_are_wanted_neighbouring_cells_join_into_a_partition(category: Category, secret: str) -> None:
    around = Around(wanted=258)
    found = VOCABULARIES[category].pool(secret, around, DRAW)
    assert found is not None and secret in found.values and len(found.values) > 120
    for value in found.values[:: len(found.values) // 9]:
        other = VOCABULARIES[category].pool(value, around, DRAW)
        assert other is not None and other.values == found.values


def test_what_is_marked_without_a_category_is_looked_for_in_all_lists() -> None:
    kinds = {secret: check(Category.FREE, secret).kind for secret in ("software engineer", "Boston", "Ann Lee")}
    assert kinds["software engineer"].startswith("job") and kinds["Ann Lee"].startswith("given name")
    assert pool(Category.FREE, "a rash on my left arm") is None


@pytest.mark.parametrize(
    ("category", "secrets"),
    [
        (
            Category.ORGANISATION,
            "University of Michigan|FBI|Department of Health|St. Mary's Hospital|CVS|Kaiser Permanente|US Army|YMCA|"
            "MIT|World Health Organization|Massachusetts General Hospital|Deloitte|Apple|Google|Harvard",
        ),
        (Category.PLACE, "St. Louis|TX|Texas|Paris, France|Lyon, France|Portland, OR|Boston|Germany"),
        (
            Category.MEDICATION,
            "vitamin D|fish oil|folic acid|antibiotics|birth control|amoxicillin-clavulanate|Tylenol PM|Tylenol|"
            "lisinopril-hydrochlorothiazide|potassium chloride|atenolol-lisinopril",
        ),
    ],
)
def test_ordinary_values_have_a_pool_that_each_member_has(category: Category, secrets: str) -> None:
    for secret in secrets.split("|"):
        check(category, secret, fewest=10)


def test_a_well_known_body_is_in_one_cell() -> None:
    words = [word.casefold() for _, cell in BODIES for word in cell]
    assert len({*words}) == len(words) > 200 and min(len(cell) for _, cell in BODIES) == 16


def around_of(text: str, wanted: int = 16) -> tuple[str, Around]:
    before, secret, after = re.split(r"[\[\]]", text)
    return secret, Around(before, after, wanted)


@pytest.mark.parametrize(
    ("category", "text", "kind"),
    [
        (Category.AGE, "A [47]-year-old", "age in years from 34 to 49"),
        (Category.PLACE, "I live in [Bristol], FL.", "town in FL"),
        (Category.PLACE, "I live in [Bristol].", "city in United Kingdom"),
        (Category.PLACE, "I live in [Lyon], France.", "city in France"),
        (Category.ORGANISATION, "I work at [Wayne Enterprises].", "company of examples and fiction"),
        (Category.ORGANISATION, "I work at [Summit Logistics].", "organisation named after a company of a common word"),
        (Category.MEDICATION, "He takes [Risperdal].", "brands, antipsychotics"),
        (Category.MEDICATION, "He took 25 mg of [atenolol] daily.", "beta blocking agents, with a dose"),
        (Category.FREE, "My last position was [nurse].", "job"),
    ],
)
def test_a_pool_agrees_with_the_text_beside_it(category: Category, text: str, kind: str) -> None:
    secret, around = around_of(text)
    found = VOCABULARIES[category].pool(secret, around, DRAW)
    assert found is not None and found.kind == kind and 7 < len(found.values) < 65
    for value in found.values:
        other = VOCABULARIES[category].pool(value, around, DRAW)
        assert other is not None and other.values == found.values


@pytest.mark.parametrize(
    ("category", "text"),
    [
        (Category.PLACE, "I live in [Lyon], TX."),
        (Category.PLACE, "I live in [Lyon], Germany."),
        (Category.MEDICATION, "her [Bactroban] ointment"),
        (Category.MEDICATION, "5 mg of [metoprolol] IV"),
        (Category.MEDICATION, "[insulin] 20 units"),
        (Category.ORGANISATION, "I work at [Amazon Web Services]."),
    ],
)
def test_what_the_text_beside_it_tells_is_refused(category: Category, text: str) -> None:
    secret, around = around_of(text)
    assert VOCABULARIES[category].pool(secret, around, DRAW) is None


def test_an_age_is_among_its_neighbours_unless_many_are_wanted() -> None:
    sizes = {wanted: VOCABULARIES[Category.AGE].pool("8", Around(wanted=wanted), DRAW) for wanted in (16, 64)}
    assert [len(found.values) for found in sizes.values() if found] == [8, 16]
