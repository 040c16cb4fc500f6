"""Numbers of people and things in the same form, with valid check digits, by format-preserving encryption under a key
for each. What is no number stays: signs, and letters apart from digits ("MRN-"). So does what others would not have:
the issuer of a card, the country and area of a phone number, digits that the text around says again. Small sets are
cut, not encrypted."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cloister.detection.checksums import CHECKS, kind_of_digits
from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Cells
from cloister.obfuscation.candidates.emails import email_pool
from cloister.obfuscation.candidates.ff1 import permuted
from cloister.obfuscation.index import Prf

MAX_CHARACTERS = 64
EXTENSION = frozenset(("x", "ext"))  # of a phone number: it stays
MAX_STEPS = 500  # of one walk; one number in ten is valid where fewest are
SMALL = 1024  # values of a set that is cut into cells
_DIGITS = "0123456789"
_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = re.compile(r"[0-9a-f]{2,}(?:[:-][0-9a-f]+)*|[0-9A-F]{2,}(?:[:-][0-9A-F]+)*")
_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_NORTH_AMERICA = re.compile(
    r"(?P<before>(?:\+?1[-. ]?)?\(?)(?P<area>[2-9][0-9]{2})(?P<gap>\)? ?[-. ]?)(?P<rest>[2-9][0-9]{2}[-. ]?[0-9]{4})"
)
_TOKEN = re.compile(r"[0-9]+|[A-Za-z]+|[^0-9A-Za-z]")
_TWO_CHECKS = frozenset(("be-nrn", "fr-nir", "ru-snils", "br-cpf", "no-fodselsnummer", "tr-kimlik"))
_LAST_YEAR, _YEARS = 2026, 20
AREAS = Cells("areas")  # codes of phone numbers in the United States, and in Canada
SAID = 4  # digits in a row that the text around has, too: they stay
ISSUER, ABROAD, AREA = 4, 4, 4  # digits that stay: of a card, after "+", and at most of a first group


@dataclass(frozen=True, slots=True, repr=False)
class Form:
    """A value has one of `choices` in each place. The numbers in the places `checks` follow from the others."""

    kind: str
    choices: tuple[tuple[str, ...] | str, ...]
    checks: tuple[int, ...] = ()
    said: str = ""

    @property
    def count(self) -> int:
        product = 1
        for each in self.choices:
            product *= len(each)
        return product

    def number(self, value: str) -> int:
        number = 0
        for place, part in zip(self.choices, self.parts(value), strict=True):
            number = number * len(place) + place.index(part)
        return number

    def parts(self, value: str) -> Iterator[str]:
        at = 0
        for place, choices in enumerate(self.choices):
            length = 1 if place in self.checks else len(choices[0])
            yield choices[0] if place in self.checks else value[at : at + length]
            at += length

    def value(self, number: int) -> str | None:
        """None where no check digits fit, or the value would be read as another kind."""
        parts: list[str] = []
        for choices in reversed(self.choices):
            number, at = divmod(number, len(choices))
            parts.insert(0, choices[at])
        for digits in itertools.product(_DIGITS, repeat=len(self.checks)):
            for place, digit in zip(self.checks, digits, strict=True):
                parts[place] = digit
            if form_of(value := "".join(parts), self.said) == self:
                return value
        return None


class Ids:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if len(secret) > MAX_CHARACTERS:
            return None
        if "@" in secret:
            return email_pool(secret, around.wanted)
        form = form_of(secret, " ".join(re.findall(rf"[0-9]{{{SAID},}}", f"{around.before}\0{around.after}")))
        if form is None or form.count < 2:
            return None
        values = (_cut if form.count <= SMALL else _drawn)(form, secret, draw, around.most)
        return Pool(tuple(values), f"{form.kind} in the same form")


def _cut(form: Form, secret: str, draw: Prf, most: int) -> list[str]:
    """The key shuffles all there are; the secret's cell does not depend on it."""
    order = draw.order(b"numbers of an id", form.count)
    valid = [value for number in order.places if (value := form.value(number)) is not None]
    start = valid.index(secret) // most * most
    return sorted(valid[start : start + most])


def _drawn(form: Form, secret: str, draw: Prf, most: int) -> list[str]:
    values = {secret}
    for each in range(1, most):
        key, number = draw.secret(b"id of variant %d" % each), form.number(secret)
        for _ in range(MAX_STEPS):  # a permutation of all, walked until a valid number, is one of the valid ones
            number = permuted(key, number, form.count)
            if (value := form.value(number)) is not None:
                values.add(value)
                break
    return sorted(values)


def form_of(value: str, said: str = "") -> Form | None:
    """Digits stay that `said` has, where a number of another form is left without them."""
    form = _form_of(value)
    if form is None or not said or sum(map(len, form.choices)) == len(form.choices):
        return form
    places = [at for run in re.finditer(r"[0-9]+", value) for at in range(run.start(), run.end() - SAID + 1)]
    stay = {at + more for at in places if value[at : at + SAID] in said for more in range(SAID)}
    if not stay or sum(len(each[0]) for each in form.choices) != len(form.choices):
        return replace(form, said=said)
    choices = tuple(value[at] if at in stay else each for at, each in enumerate(form.choices))
    return replace(form, choices=choices, checks=tuple(at for at in form.checks if at not in stay), said=said)


def _form_of(value: str) -> Form | None:
    digits = "".join(each for each in value if each in _DIGITS)
    if len(digits) < 2 or not value.isascii():
        return None
    if _ADDRESS.fullmatch(value):
        return _address(value)
    if (found := _NORTH_AMERICA.fullmatch(value)) and CHECKS["us_phone"](digits):
        return _north_america(found)
    compact = re.sub(r"[ -]", "", value)
    if CHECKS["iban"](compact) and "02" <= compact[2:4] <= "98":
        return _places("account number", value, fixed=2, checks=2, from_start=True)
    if re.fullmatch(r"[0-9]{3}-[0-9]{2}-[0-9]{4}", value):
        if not CHECKS["us_ssn"](digits):
            return _places("number", value)
        kind = "taxpayer number" if value[0] == "9" else "social security number"
        return _places(kind, value, fixed=value[0] == "9")
    if len(compact) > 7 and _HEX.fullmatch(value) and re.search("[A-Fa-f]", value):
        return _hexadecimal(value)
    if not re.search("[A-Za-z]", value) and (kind := _checked(value, digits)):
        fixed = ISSUER if kind == "card" else 1 if kind == "provider number" else _group(value)
        return _places(kind, value, fixed=fixed, checks=2 if kind in _TWO_CHECKS else 1)
    if value[0] == "+" and len(digits) > 7:
        return _places("phone number", value, fixed=ABROAD)
    return _places("number", value, fixed=_group(value))


def _group(value: str) -> int:
    """Digits of the first of two or more groups, at most AREA, if four others change: of a phone number, its area."""
    found = re.fullmatch(rf"(\(?[0-9]{{1,{AREA}}})[)]?[ ./-]+([0-9][0-9 ./-]{{3,}})", value)
    left = 0 if found is None else sum(each in _DIGITS for each in found[2])
    return sum(each in _DIGITS for each in found[1]) if found is not None and left >= 4 else 0


def _checked(value: str, digits: str) -> str:
    if len(digits) == 10 and digits[0] in "12" and CHECKS["luhn"]("80840" + digits):
        return "provider number"  # NPI: 45 CFR 162.406
    found = None if value[0] == "+" else kind_of_digits(value)
    return "" if found is None or found.name in ("digits", "phone", "us-phone") else found.name


def _address(value: str) -> Form | None:
    """Numbers of an IP address with as many digits."""
    ranges = {1: range(10), 2: range(10, 100), 3: range(100, 256)}
    choices: list[tuple[str, ...]] = []
    for token in re.findall(r"[0-9]+|\.", value):
        same = (token,) if token == "." else tuple(map(str, ranges[len(token)]))
        if token not in same:
            return None
        choices.append(same)
    return Form("internet address", tuple(choices))


def _north_america(found: re.Match[str]) -> Form:
    area = AREAS.slot(found["area"])
    areas = area.values if area else (found["area"],)
    rest = tuple(
        "23456789" if place == 0 else each if each not in _DIGITS else _DIGITS
        for place, each in enumerate(found["rest"])
    )
    return Form("phone number", (*found["before"], areas, *found["gap"], *rest))


def _hexadecimal(value: str) -> Form:
    alphabet = _DIGITS + ("abcdef" if value.islower() else "ABCDEF")
    uuid = re.fullmatch(r"[^-]{8}-[^-]{4}-[^-]{4}-[^-]{4}-[^-]{12}", value)
    kept = (14, 19) if uuid else ()  # version and variant
    choices = tuple(alphabet if each.isalnum() and place not in kept else each for place, each in enumerate(value))
    return Form("hexadecimal number", choices)


def _places(kind: str, value: str, *, fixed: int = 0, checks: int = 0, from_start: bool = False) -> Form:
    """The first `fixed` letters or digits stay. The `checks` after them, or at the end, are check digits. Years stay
    years, leading zeros stay, letters apart from digits stay."""
    choices: list[tuple[str, ...] | str] = []
    tokens = _TOKEN.findall(value)
    for place, token in enumerate(tokens):
        if token[0] in _DIGITS:
            choices += _run(token) if not checks else [_DIGITS] * len(token)
        elif _changes(tokens, place):
            choices += [_UPPER if each.isupper() else _UPPER.lower() for each in token]
        else:
            choices += token
    signs = [at for at, each in enumerate("".join(tokens)) if each.isalnum()]
    width = sum(len(each[0]) for each in choices)
    if width == len(choices):
        for at in signs[:fixed]:
            choices[at] = value[at]
    numbers = [at for at in signs if value[at] in _DIGITS]
    found = tuple(signs[fixed : fixed + checks] if from_start else numbers[len(numbers) - checks :]) if checks else ()
    for at in found:
        choices[at] = "0"
    return Form(kind, tuple(choices), found)


def _changes(tokens: list[str], place: int) -> bool:
    token = tokens[place]
    beside = _is_digits(tokens, place - 1) or _is_digits(tokens, place + 1)
    return token.isalpha() and beside and len(token) < 4 and token not in EXTENSION


def _is_digits(tokens: list[str], place: int) -> bool:
    return 0 <= place < len(tokens) and tokens[place][0] in _DIGITS


def _run(digits: str) -> list[tuple[str, ...] | str]:
    if len(digits) == 4 and _LAST_YEAR - 4 * _YEARS < int(digits) <= _LAST_YEAR:
        first = _LAST_YEAR - (_LAST_YEAR - int(digits)) // _YEARS * _YEARS
        return [tuple(str(year) for year in range(first - _YEARS + 1, first + 1))]
    zeros = len(digits) - len(digits.lstrip("0"))
    rest = len(digits) - zeros
    return [*("0" * zeros), *([_DIGITS[1:]] if rest else []), *([_DIGITS] * (rest - 1))]
