"""What must agree moves together; each member of a pool would have got that pool."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cloister.errors import TagsInvalid
from cloister.obfuscation import joint
from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.dates import Dated, read_all
from cloister.obfuscation.entities import add_mentions, entities_of, swapped
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Group, around_of, diagonal, groups_of
from cloister.obfuscation.tags import Category, TaggedText, parse_redacted
from tests.examples import examples

PRF = Prf(bytes(32))


class Calendar:
    """All days of a block of days, months of four years, or years of a score, written as the secret is."""

    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if (read := Dated.of(secret) or Dated.of(secret, day_first=True)) is None:
            return None
        here = read.on(2024)
        if read.unit == "day":
            first = date.fromordinal(here.toordinal() // 60 * 60)
            days = [first + timedelta(days=at) for at in range(60)]
            days = days if read.year else [day for day in days if day.year == 2024]
        else:
            days = [date(here.year // 4 * 4 + at // 12, at % 12 + 1, 1) for at in range(48)]
            days = [date(here.year // 20 * 20 + at, 1, 1) for at in range(20)] if read.unit == "year" else days
        written = (str(one) for day in days if (one := read.moved_to(day)) is not None)
        again = ((value, Dated.of(value, read.day_first)) for value in written)
        values = tuple(dict.fromkeys(value for value, one in again if one is not None and one.fields == read.fields))
        return Pool(values, "date") if secret in values else None


class Ages:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        first = int(secret) // 20 * 20
        return Pool(tuple(str(age) for age in range(first, first + 20)), "age")


class Words:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        words = ("Lund", "Garner", "Patton", "Thorn")
        if " " in secret:
            words = ("Ann Lund", "Eva Garner", "Ida Patton", "Zoe Thorn")
        return Pool(words, "name") if secret in words else None


VOCABULARIES = {Category.DATE: Calendar(), Category.AGE: Ages(), Category.NAME: Words()}


def marks(text: str) -> TaggedText:
    """{d:…} is a date, {a:…} an age, and so on."""
    for short, category in {
        "d": "date",
        "a": "age",
        "n": "name",
        "p": "place",
        "m": "medication",
        "f": "free",
        "i": "id",
    }.items():
        text = text.replace(f"{{{short}:", f'<redacted category="{category}">')
    return parse_redacted(text.replace("}", "</redacted>"))


def grouped(texts: list[TaggedText]) -> list[Group]:
    texts = add_mentions(texts)
    return groups_of(texts, entities_of(texts), PRF, VOCABULARIES)


def members(text: str) -> tuple[tuple[str, ...], ...]:
    [group] = grouped([marks(text)])
    assert group.pool is not None
    return group.pool


def test_secrets_without_relation_are_groups_of_one() -> None:
    found = grouped([marks("{n:Lund}, {a:64}, came on {d:03/14/2011} with {n:Zq}.")])
    assert [group.entities for group in found] == [(0,), (1,), (2,), (3,)]
    assert [group.pool is None for group in found] == [False, False, False, True]
    assert found[0].pool is not None and ("Lund",) in found[0].pool


def test_what_is_around_a_secret_says_no_secret() -> None:
    texts = add_mentions([marks("Seen: {n:Lund} on {d:March 14, 2011}; Lund left.")])
    before, after = (around_of(texts, entities_of(texts))[1].before, around_of(texts, entities_of(texts))[0].after)
    assert (before, after) == ("Seen: [name] on ", " on [date]; [name] left.")


def test_all_dates_move_by_one_offset() -> None:
    pool = members("Seen {d:03/14/2011}, again {d:03/28/2011}, operated on {d:April 2, 2011}.")
    assert ("03/14/2011", "03/28/2011", "April 2, 2011") in pool and len(pool) > 10
    for one, other, third in pool:
        a, b, c = (read.on(0) for read in read_all([one, other, third]) if read)
        assert ((b - a).days, (c - b).days) == (14, 5)


def test_a_coarse_date_moves_the_others_by_its_own_unit() -> None:
    for when, then in members("Ill since {d:May 2009}, seen {d:March 14, 2011}."):
        a, b = (read.on(0) for read in read_all([when, then]) if read)
        assert 12 * (b.year - a.year) + b.month - a.month == 22 and b.day == 14


def test_years_beside_days_are_refused() -> None:
    """A year's pool has other years, in which not every day has the same weekday: a member's pool would be another."""
    [group] = grouped([marks("Ill since {d:2009}, seen {d:March 14, 2011}.")])
    assert group.pool is None


def test_an_age_and_a_date_of_birth_agree_at_the_date_of_the_note() -> None:
    pool = members("{a:53}-year-old, born {d:May 3, 1957}, seen on {d:March 14, 2011}.")
    assert len(pool) >= 8 and len({age for *_, age in pool}) == len(pool), "no age comes twice"
    for born, seen, age in pool:
        a, b = (read.on(0) for read in read_all([born, seen]) if read)
        assert b.year - a.year - ((b.month, b.day) < (a.month, a.day)) == int(age)
    for born, age in members("{a:53}-year-old, DOB: {d:05/03/1957}."):
        assert int(born[-4:]) + int(age) == 2010


def test_a_name_and_the_address_that_says_it_are_one() -> None:
    pool = members("{n:Ann Lund} has {i:ann.lund52@gmail.com}, and {i:alund@yahoo.com}.")
    assert ("Ann Lund", "ann.lund52@gmail.com", "alund@yahoo.com") in pool and len(pool) == 4
    assert ("Eva Garner", "eva.garner53@gmail.com", "egarner@yahoo.com") in pool
    again = members("{n:Eva Garner} has {i:eva.garner53@gmail.com}, and {i:egarner@yahoo.com}.")
    assert again == pool, "each would have got this pool"
    before = members("{i:ann.lund52@gmail.com} is of {n:Ann Lund}.")
    assert ("ann.lund52@gmail.com", "Ann Lund") in before, "values are in the order of the text"
    [group] = grouped([marks("{n:Ann Lund} has {i:ann.lund@acme.com}.")])
    assert group.pool is None, "the employer stays in all of them"
    with pytest.raises(TagsInvalid, match="two of the marked names"):
        grouped([marks("{n:Ann Lund} and {n:Patton} have {i:lund.patton@gmail.com}.")])


def test_an_age_of_someone_else_moves_alone() -> None:
    found = grouped([marks("Born {d:May 3, 1957}, seen on {d:March 14, 2011} with a son of {a:20} years.")])
    assert [group.entities for group in found] == [(0, 1), (2,)]


def test_a_date_keeps_to_its_side_of_a_public_one() -> None:
    pool = members("Seen {d:03/14/2011}, before the operation of 03/20/2011.")
    assert 8 <= len(pool) < 60 and all(one < "03/20/2011" for (one,) in pool)


def test_numbers_are_read_day_first_where_they_must_be() -> None:
    for one, other in members("Seen {d:28/03/2011} and {d:02/04/2011}."):
        assert any(int(each[:2]) > 12 for each in (one, other)), "it would be read the other way round"


@pytest.mark.parametrize(
    "text",
    [
        "A {a:53}-year-old, born May 3, 1957.",
        "Of {p:Ghent}, postcode {f:90210}.",
        "Of {p:Beverly}, CA 90210.",
        "Takes {m:metoprolol} {f:25 mg} daily.",
    ],
)
def test_what_no_value_could_agree_with_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(TagsInvalid) as refused:
        grouped([marks(text)])
    assert refused.value.hint
    said = f"{refused.value} {refused.value.hint}"
    assert not any(word in said for word in ("53", "1957", "Ghent", "90210", "Beverly", "metoprolol", "25"))


FORMS = ("{:%m/%d/%Y}", "{:%B %d, %Y}", "{:%Y-%m-%d}", "{:%d %B %Y}", "{:%B %Y}", "{:%Y}", "{:%B %d}")
days = st.dates(date(1990, 1, 1), date(2020, 12, 31))
NOTE = "Born {d:%s}, {a:%d} years old; seen {d:%s}, then {d:%s}, before May 5, 2011."


@given(
    days, days, days, st.sampled_from(FORMS[:4]), st.sampled_from(FORMS), st.sampled_from(FORMS), st.integers(21, 79)
)
@examples(10)
def test_each_member_of_a_pool_would_have_got_the_pool(
    born: date, one: date, other: date, first: str, second: str, third: str, age: int
) -> None:
    born = born.replace(year=born.year - 30) if (born.month, born.day) != (2, 29) else date(1960, 1, 1)
    age = one.year - born.year if age % 2 else age
    written = [form.format(day) for form, day in ((first, born), (second, one), (third, other))]
    assume(len(set(written)) == 3)
    texts = add_mentions([marks(NOTE % (written[0], age, *written[1:]))])
    entities = entities_of(texts)
    for group in grouped(texts):
        secret = tuple(entities[place].secret for place in group.entities)
        if group.pool is None:
            continue
        assert secret in group.pool
        for column in zip(*group.pool, strict=True):
            assert len(set(column)) == len(column), "a value stands in two variants"
        for values in group.pool[:: max(1, len(group.pool) // 3)]:
            shown = [entity.secret for entity in entities]
            for place, value in zip(group.entities, values, strict=True):
                shown[place] = value
            again = grouped(swapped(texts, entities, shown))
            assert [each.entities for each in again] == [each.entities for each in grouped(texts)]
            [mine] = [each for each in again if each.entities == group.entities]
            assert mine.pool == group.pool


@given(st.integers(1, 40), st.integers(1, 40), st.data())
@examples(60)
def test_a_diagonal_is_the_same_from_each_of_its_cells(rows: int, columns: int, data: st.DataObject) -> None:
    i, j = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    cells = diagonal(i, j, rows, columns)
    assert (i, j) in cells and 2 * len(cells) >= min(rows, columns) - 1
    assert len({row for row, _ in cells}) == len({column for _, column in cells}) == len(cells)
    assert all(diagonal(*cell, rows, columns) == cells for cell in cells)


def test_without_the_structure_a_pool_tells_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint._Dates, "_structure", lambda self, values: None)
    text = "Seen {d:03/14/2011}, before the operation of 03/20/2011."
    assert any(one > "03/20/2011" for (one,) in members(text)), "it would be after what it is before"
