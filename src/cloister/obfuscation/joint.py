"""Secrets that must agree are one, with a tuple of values: all dates of a prompt move together, and an age with the
date of birth. Whatever is kept (order, distances, what comes before a public date) splits a pool in the same way for
each of its members: each would have got this pool."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from cloister.errors import TagsInvalid
from cloister.obfuscation.candidates.base import Around, Vocabulary
from cloister.obfuscation.candidates.emails import PROVIDERS
from cloister.obfuscation.dates import Dated, read_all
from cloister.obfuscation.entities import Entity, blanked
from cloister.obfuscation.index import Prf
from cloister.obfuscation.parts import EMAIL, Part, key_of, outside, parts_of
from cloister.obfuscation.people import in_address
from cloister.obfuscation.tags import Category, TaggedText

Values = tuple[str, ...]
Vocabularies = Mapping[Category, Vocabulary]
_BIRTH = re.compile(r"(?:\bborn(?: on| in)?|\bbirth(?:day|date)?(?: is| was)?|\bD\.?O\.?B\.?)\W{0,3}\Z", re.IGNORECASE)
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_PUBLIC = re.compile(
    rf"\b(?:\d{{1,2}}/\d{{1,2}}/(?:\d{{4}}|\d\d)|\d{{4}}-\d\d-\d\d|{_MONTH} \d{{1,2}},? \d{{4}}|{_MONTH} \d{{4}})(?!\w)"
)
_POSTCODE = re.compile(r"\d{5}(?:-\d{4})?|[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}")
_POSTCODE_AFTER = re.compile(rf",? (?:[A-Z][A-Za-z]+ )?(?:{_POSTCODE.pattern})(?!\w)")
_DOSE = re.compile(r"\d+(?:[.,]\d+)? ?(?:mg|mcg|µg|g|ml|units?|IU|%)(?:/\w+)?", re.IGNORECASE)
_WEEKDAY = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,? (?:the |on )?\Z")
_COARSE = {"day": 0, "month": 1, "year": 2}
_LEAP = 2024  # stands for a year that no date has
MOST_APART = 1  # year: an age that fits a date of birth worse is someone else's


@dataclass(frozen=True, slots=True, repr=False)
class Group:
    """Places of entities that are drawn together, and the values they may have; None: in no vocabulary."""

    entities: tuple[int, ...]
    pool: tuple[Values, ...] | None
    kind: str = ""


def groups_of(
    texts: Sequence[TaggedText], entities: Sequence[Entity], draw: Prf, vocabularies: Vocabularies, wanted: int = 0
) -> list[Group]:
    """Every entity is in one, by the first's place. TagsInvalid where secrets cannot be made to agree."""
    around = around_of(texts, entities, wanted)
    refuse_apart(texts, entities)
    dates = _Dates.of(texts, entities)
    together = dates.places if dates is not None else ()
    addresses = _addresses(entities)
    groups = []
    for place, entity in enumerate(entities):
        if any(place in mails for mails in addresses.values()):
            continue
        if dates is not None and place in together:
            if place == min(together):
                groups.append(dates.group(around, draw, vocabularies))
            continue
        found = vocabularies[entity.category].pool(entity.secret, around[place], draw)
        values = () if found is None else found.values
        if dates is not None and entity.category is Category.AGE:  # another's age: it may not come to fit
            values = tuple(value for value in values if value == entity.secret or not dates.fits(value))
        pool: tuple[Values, ...] | None = None if found is None else tuple((value,) for value in values)
        mails = addresses.get(place, ())
        if pool is not None and mails:
            pool = _with_addresses([entity, *(entities[at] for at in mails)], values, around[place].most)
        places = sorted((place, *mails))
        if pool is not None and mails:
            pool = tuple(tuple(dict(zip((place, *mails), row, strict=True))[at] for at in places) for row in pool)
        groups.append(Group(tuple(places), pool, "" if found is None else found.kind))
    return groups


def around_of(texts: Sequence[TaggedText], entities: Sequence[Entity], wanted: int = 0) -> list[Around]:
    """Of each entity: what stands before and after its first mention, all secrets blanked."""
    found = []
    sign = "\0"
    for entity in entities:
        blanks = [f"[{one.category}]" if one is not entity else sign for one in entities]
        before, _, after = "\n\n".join(blanked(texts, entities, blanks)).partition(sign)
        found.append(Around(before, after.replace(sign, f"[{entity.category}]"), wanted))
    return found


def refuse_apart(texts: Sequence[TaggedText], entities: Sequence[Entity]) -> None:
    """What no value could agree with: nothing is sent."""
    said = "\0".join(piece for text in texts for _, piece in outside(text))
    kinds = [entity.category for entity in entities]
    births = [found for found in _PUBLIC.finditer(said) if _BIRTH.search(said, 0, found.start())]
    if Category.AGE in kinds and births:
        message = "An age is marked, and a date of birth that tells it is not."
        raise TagsInvalid(message, hint="Mark the date of birth, too: both then move together. Or leave it out.")
    places = [mention for one in entities if one.category is Category.PLACE for mention in one.mentions]
    beside = any(_POSTCODE_AFTER.match(texts[one.text].text, one.span.end) for one in places)
    codes = (one for one in entities if one.category is not Category.DATE and _POSTCODE.fullmatch(one.secret))
    if places and (beside or any(codes)):
        message = "A place is marked, and a postcode that tells it stands apart."
        raise TagsInvalid(message, hint="Leave the postcode out, or mark both as one and give substitutes for it.")
    if any(_DOSE.fullmatch(one.secret) for one in entities) and Category.MEDICATION in kinds:
        message = "A drug and its dose are marked apart: the dose of one would tell it among the others."
        hint = "Mark the drug alone: its substitutes are judged by the dose, too."
        raise TagsInvalid(message, hint=hint)


def _addresses(entities: Sequence[Entity]) -> dict[int, list[int]]:
    """By the place of a name, those of the e-mail addresses that say it. TagsInvalid where one says two."""
    found: dict[int, list[int]] = {}
    for place, entity in enumerate(entities):
        if (mail := EMAIL.fullmatch(entity.secret)) is None:
            continue
        names = (at for at, one in enumerate(entities) if one.category is Category.NAME and at != place)
        said = [at for at in names if any(in_address(mail["local"], _finder(entities[at].secret)))]
        if len(said) > 1:
            message = "An e-mail address says two of the marked names: no other address fits both."
            raise TagsInvalid(message, hint="Leave the address out, or give substitutes.")
        for at in said:
            found.setdefault(at, []).append(place)
    return found


def _finder(name: str) -> Callable[[str], Part | None]:
    words = {key_of(word): Part(key_of(name), index) for index, word in enumerate(parts_of(name)) if len(word) > 2}
    return lambda word: words.get(key_of(word))


def _with_addresses(those: Sequence[Entity], names: Sequence[str], most: int) -> tuple[Values, ...] | None:
    """The addresses say each name as they say the real one. Digits turn with the place in the pool: each of the pool
    would have got the same. None where an address tells an employer."""
    name, *mails = (entity.secret for entity in those)
    if any(mail.partition("@")[2].split(".")[0].casefold() not in PROVIDERS for mail in mails):
        return None
    rank = names.index(name)
    rows = []
    for at, value in enumerate(names):
        made = [_addressed(mail, name, value, at - rank) for mail in mails]
        if None not in made:
            rows.append((value, *(one for one in made if one is not None)))
    return tuple(apart(rows, (name, *mails), most))


def _addressed(mail: str, name: str, value: str, by: int) -> str | None:
    local, _, domain = mail.partition("@")
    words, out, at = parts_of(value), "", 0
    said = list(in_address(local, _finder(name)))
    if len(words) != len(parts_of(name)):
        return None
    for start, end, part in said:
        word = words[part.index][:1] if part.initial else words[part.index]
        own = local[start:end]
        out += _turned(local[at:start], by) + (
            word.lower() if own.islower() else word.upper() if own.isupper() else word
        )
        at = end
    out += _turned(local[at:], by)
    again = [(part.index, part.initial) for *_, part in in_address(out, _finder(value))]
    fits = out.isascii() and again == [(part.index, part.initial) for *_, part in said]
    return f"{out}@{domain}" if fits else None


def _turned(text: str, by: int) -> str:
    return re.sub(r"\d+", lambda found: f"{(int(found[0]) + by) % 10 ** len(found[0]):0{len(found[0])}}", text)


@dataclass(frozen=True, slots=True, repr=False)
class _Dates:
    """Dates that move by one offset, counted in the unit of the coarsest, the `anchor`. A date of birth that an age
    fits moves as the birthday of that age, whatever the age becomes. `named`: dates beside a weekday."""

    secrets: Values
    places: tuple[int, ...]  # of the entities; the age's comes last
    read: tuple[Dated, ...]
    birth: int | None
    age: int | None
    public: tuple[date, ...]
    named: tuple[int, ...]

    @classmethod
    def of(cls, texts: Sequence[TaggedText], entities: Sequence[Entity]) -> "_Dates | None":
        """None where no secret is a date that can be read. What has no year does not go with years and months."""
        places = [place for place, entity in enumerate(entities) if entity.category is Category.DATE]
        all_read = zip(places, read_all([entities[place].secret for place in places]), strict=True)
        dated = {place: one for place, one in all_read if one is not None}
        if any(one.year is not None and one.unit != "day" for one in dated.values()):
            dated = {place: one for place, one in dated.items() if one.year is not None}
        if not dated:
            return None
        around = around_of(texts, entities)
        births = [at for at, place in enumerate(dated) if dated[place].year and _BIRTH.search(around[place].before)]
        outer = (found[0] for text in texts for _, piece in outside(text) for found in _PUBLIC.finditer(piece))
        joint = cls(
            tuple(entities[place].secret for place in dated),
            tuple(dated),
            tuple(dated.values()),
            births[0] if len(births) == 1 else None,
            None,
            tuple(one.on(0) for one in map(Dated.of, outer) if one is not None),
            tuple(at for at, place in enumerate(dated) if _WEEKDAY.search(around[place].before)),
        )
        ages = [place for place, one in enumerate(entities) if one.category is Category.AGE]
        place = next((one for one in ages if joint.fits(entities[one].secret)), None)
        if place is None:
            return joint
        secrets, age = (*joint.secrets, entities[place].secret), _years(entities[place].secret)
        return replace(joint, secrets=secrets, places=(*joint.places, place), age=age)

    def group(self, around: Sequence[Around], draw: Prf, vocabularies: Vocabularies) -> Group:
        # Years beside days: not every member would have got the same pool.
        mixed = len({one.unit == "year" for one in self.read}) > 1
        base = None if mixed else self._base(self.read, self.age or 0)
        if base is None:
            return Group(self.places, None)
        anchor = max(range(len(base)), key=lambda at: (_COARSE[base[at].unit], base[at].year is not None, -at))
        here = self.places[anchor]
        dates = vocabularies[Category.DATE].pool(str(base[anchor]), around[here], draw)
        aged = vocabularies[Category.AGE]
        ages = None if self.age is None else aged.pool(self.secrets[-1], around[self.places[-1]], draw)
        if dates is None or (ages is None and self.age is not None):
            return Group(self.places, None)
        pairs = [(value, "") for value in dates.values]
        if ages is not None:
            at = dates.values.index(str(base[anchor])), ages.values.index(self.secrets[-1])
            both = diagonal(*at, len(dates.values), len(ages.values))
            pairs = [(dates.values[i], ages.values[j]) for i, j in both]
        made = (self._moved(base, anchor, value, age) for value, age in pairs)
        form = self._structure(self.secrets)
        same = [values for values in made if values is not None and self._structure(values) == form]
        return Group(self.places, tuple(apart(same, self.secrets, around[here].most)), dates.kind)

    def _base(self, read: Sequence[Dated], years: int) -> list[Dated] | None:
        """The dates, with the birthday these years later."""
        out = list(read)
        if self.birth is not None and years:
            born = read[self.birth]
            moved = born.at((born.year or 0) + years, born.month, born.day)
            if moved is None:
                return None
            out[self.birth] = moved
        return out

    def _moved(self, base: Sequence[Dated], anchor: int, value: str, age: str) -> Values | None:
        """All of them, where the anchor is `value`."""
        here = base[anchor]
        there = Dated.of(value, here.day_first)
        if there is None or there.fields != here.fields:
            return None
        year = here.year or _LEAP
        out = []
        for one in base:
            when = _shifted(one.on(year), here.on(year), there.on(year), here.unit)
            same = one.year is not None or (when is not None and when.year == (there.year or year))
            if when is None or not same or (moved := one.moved_to(when)) is None:
                return None
            out.append(moved)
        aged = self._base(out, -(_years(age) or 0)) if age else out
        return None if aged is None else (*map(str, aged), *((age,) if age else ()))

    def fits(self, age: str) -> bool:
        """Whether someone of the date of birth has this age at the first other date; without one, any age fits."""
        if self.birth is None or (years := _years(age)) is None:
            return False
        gap = self._gap(self.read, years)
        return gap is None or abs(gap) <= MOST_APART

    def _gap(self, read: Sequence[Dated], age: int) -> int | None:
        note = next((one for at, one in enumerate(read) if at != self.birth and one.year is not None), None)
        if self.birth is None or note is None:
            return None
        born, when = read[self.birth].on(0), note.on(0)
        return when.year - born.year - ((when.month, when.day) < (born.month, born.day)) - age

    def _structure(self, values: Values) -> object:
        """All that a reader could see of how the dates hang together; None if they are read otherwise."""
        read = [one for one in read_all(values[: len(self.read)]) if one is not None]
        if len(read) < len(self.read):
            return None
        year = next((one.year for one in read if one.year is not None), _LEAP)
        days = [one.on(year) for one in read]
        order = [(one > other) - (one < other) for one in days for other in (*days, *self.public)]
        gap = None if self.age is None else self._gap(read, _years(values[-1]) or 0)
        weekdays = [days[at].weekday() for at in self.named]
        return [(one.fields, one.pieces, one.day_first) for one in read], order, gap, weekdays


def _years(age: str) -> int | None:
    """None for words, months and weeks."""
    found = re.fullmatch(r"(?P<years>\d{1,3})(?:[- ]?(?:years?|yrs?|yo|y/o)\b.*)?", age, re.IGNORECASE)
    return None if found is None else int(found["years"])


def _shifted(one: date, here: date, there: date, unit: str) -> date | None:
    if unit == "day":
        return one + timedelta(days=(there - here).days)
    months = 12 * (there.year - here.year) + (there.month - here.month)
    count = 12 * one.year + one.month - 1 + months
    try:
        return one.replace(year=count // 12, month=count % 12 + 1)
    except ValueError:
        return None


def diagonal(i: int, j: int, rows: int, columns: int) -> list[tuple[int, int]]:
    """Cells of a table, no two in a row or column, with (i, j): from each of them one comes to the same ones. The
    larger side is cut into blocks no longer than the smaller, which turns around along a block."""
    if rows < columns:
        return [(row, column) for column, row in diagonal(j, i, columns, rows)]
    blocks = -(-rows // columns)
    ends = [at * rows // blocks for at in range(blocks + 1)]
    first = max(end for end in ends if end <= i)
    last = min(end for end in ends if end > i)
    return [(row, (j + row - i) % columns) for row in range(first, last)]


def apart(pool: Sequence[Values], secret: Values, most: int) -> list[Values]:
    """The class of the secret, where no value of one place is in two members; at most `most`."""
    classes: list[tuple[list[Values], set[tuple[int, str]]]] = []
    for values in pool:
        own = set(enumerate(values))
        free = [one for one in classes if len(one[0]) < most and not one[1] & own]
        if not free:
            classes.append(([], set()))
            free = classes[-1:]
        chosen = min(free, key=lambda one: len(one[0]))
        chosen[0].append(values)
        chosen[1].update(own)
    return next(one for one, _ in classes if secret in one)
