"""Towns, states, countries, American addresses and ZIP codes. A town's cell is its country and size, a town with its
state one of American towns; ZIP codes are a town's own, drawn; streets keep their kind and digits."""

import re

from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Cells, Slot, apart, block, side_by_side
from cloister.obfuscation.index import Prf
from cloister.obfuscation.language_model import shape_of
from cloister.obfuscation.words import word_list

MAX_CHARACTERS = 120
PLACES, TOWNS, ZIPS, STREETS, STATES = (Cells(name) for name in ("places", "towns", "zips", "streets", "states"))
CITIES = Cells("cities")  # that all know, kept by hand: among towns of one country each of them would show
_FIXED = frozenset(word_list("places-common"))
_SUFFIXES = (
    "Street|St|Avenue|Ave|Road|Rd|Drive|Dr|Lane|Ln|Boulevard|Blvd|Court|Ct|Place|Pl|Way|Circle|Cir|Terrace|Ter|Parkway|"
    "Pkwy|Highway|Hwy|Trail|Trl|Square|Sq|Alley|Row|Loop|Plaza"
)
_STREET = re.compile(
    r"(?P<number>[0-9]{1,5})(?P<gap> (?:[NSEW]\.? |North |South |East |West )?)(?P<street>[A-Z][A-Za-z' ]*?)"
    rf"(?P<suffix> (?:{_SUFFIXES})\.?)"
    r"(?:(?P<unit>,? (?:Apt|Apartment|Suite|Ste|Unit|No|#)\.? ?)(?P<door>[0-9]{1,4}))?"
    r"(?:(?P<comma>,\s|\s)(?P<rest>.+))?",
    re.DOTALL,
)
_ABROAD = re.compile(r"(?P<town>[^,\d]+)(?P<comma>,\s*)(?P<country>[A-Z][A-Za-z ]+)")
_TOWN = re.compile(
    r"(?P<town>[^,\d]+)(?P<comma>,\s*)(?P<state>[A-Z]{2}|[A-Z][a-z]+(?: [A-Z][a-z]+)*)"
    r"(?:(?P<gap>,?\s+)(?P<zip>[0-9]{5}))?"
)


_REGION_AFTER = re.compile(r"(?P<gap>,?[ \n]+)(?P<region>[A-Z]{2}|[A-Z][a-z]+(?: [A-Z][a-z]+){0,2})(?!\w)")


class Places:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if len(secret) > MAX_CHARACTERS:
            return None
        if (region := _region_of(around.after)) and not _TOWN.fullmatch(secret) and not _STREET.fullmatch(secret):
            return _beside(secret, region, around)
        if secret in (short := tuple(_states().values())):
            return Pool(short, "state of the United States")
        if (slot := CITIES.slot(secret, around.wanted)) is not None:
            return Pool(slot.values, slot.kind)
        if (slot := PLACES.slot(secret, around.wanted)) is not None:
            values = [value for value in slot.values if value not in short and CITIES.slot(value) is None]
            if slot.kind.startswith("country"):
                return Pool(tuple(values), slot.kind)
            return Pool(apart(values, secret, _FIXED.__contains__), slot.kind)
        if secret.startswith("St. ") and (slot := PLACES.slot(f"Saint {secret[4:]}")) is not None:
            return _saints(secret, slot.kind, around.most)
        if (found := _ABROAD.fullmatch(secret)) and (abroad := _abroad(found, around.wanted)) is not None:
            return abroad
        if re.fullmatch("[0-9]{5}", secret):
            return _zip_code(secret, around.most)
        if found := _STREET.fullmatch(secret):
            return _street(found, draw, around.wanted)
        if (found := _TOWN.fullmatch(secret)) and (town := _town(found, around.wanted)):
            values = [each for value in town.values if (each := _with_state(value, found, draw)) is not None]
            return Pool(apart(values, secret, _fixed), town.kind) if secret in values else None
        return None


def _region_of(after: str) -> str:
    """The state, abbreviated, or country that comes first; "" where none is."""
    if (found := _REGION_AFTER.match(after)) is None:
        return ""
    names, words = _states(), found["region"].split()
    for said in (" ".join(words[:count]) for count in range(len(words), 0, -1)):
        state = names.get(said, said)
        if state in names.values() and (len(said) == 2 or "," in found["gap"]):
            return state
        if (country := PLACES.slot(said)) is not None and country.kind.startswith("country"):
            return said
    return ""


def _beside(secret: str, region: str, around: Around) -> Pool | None:
    """Where a state or country stands right after a town, only its own fit. None where the town is not there."""
    if region in _states().values():
        there = (word.rpartition(", ")[0] for _, cell in TOWNS for word in cell if word.endswith(f", {region}"))
        return _part(
            [town for town in there if shape_of(town) == shape_of(secret)], secret, around, f"town in {region}"
        )
    slot = PLACES.slot(secret, around.wanted)
    if slot is None or slot.kind.partition(",")[0].partition("#")[0] != f"city in {region}":
        return None
    return Pool(apart(slot.values, secret, _FIXED.__contains__), slot.kind)


def _part(values: list[str], secret: str, around: Around, kind: str) -> Pool | None:
    """The block of a list in which the secret is."""
    if secret not in values:
        return None
    length = -(-len(values) // max(1, len(values) // max(1, around.wanted)))
    start = values.index(secret) // length * length
    return Pool(apart(values[start : start + length], secret, _FIXED.__contains__), kind)


def _saints(secret: str, kind: str, most: int) -> Pool:
    """All towns of a country that are named so; GeoNames writes them out."""
    towns = (word for own, cell in PLACES if own.partition("#")[0] == kind for word in cell)
    values = [f"St. {word[6:]}" for word in towns if word.startswith("Saint ")]
    start = values.index(secret) // most * most
    return Pool(tuple(values[start : start + most]), kind)


def _abroad(found: re.Match[str], wanted: int) -> Pool | None:
    """A town with its country, which stays."""
    slot = PLACES.slot(found["town"], wanted)
    if slot is None or not slot.kind.startswith(f"city in {found['country']}"):
        return None
    values = apart(slot.values, found["town"], _FIXED.__contains__)
    return Pool(tuple(value + found["comma"] + found["country"] for value in values), slot.kind)


def _fixed(word: str) -> bool:
    return word in _FIXED or any(word in f"{name} {short}".lower().split() for name, short in _states().items())


def _states() -> dict[str, str]:
    (_, names), (_, short) = STATES
    return dict(zip(names, short, strict=True))


def _town(found: re.Match[str], wanted: int) -> Slot | None:
    """A town in its state. Its ZIP code must be one of the town's."""
    state = _states().get(found["state"], found["state"])
    slot = TOWNS.slot(f"{found['town']}, {state}", wanted)
    if slot is None or (found["zip"] and found["zip"] not in _zips(f"{found['town']}, {state}")):
        return None
    return slot


def _zips(town: str) -> list[str]:
    text, name = ZIPS.load(), f"\n{town}|".encode()
    at = text.find(name)
    return [] if at < 0 else text[at + len(name) : text.find(b"|\n", at)].decode().split("|")


def _with_state(value: str, found: re.Match[str], draw: Prf) -> str | None:
    """A town of the list, written as the secret is, with any of its ZIP codes; the secret's stays."""
    town, _, short = value.partition(", ")
    states = _states()
    names = {abbreviation: name for name, abbreviation in states.items()}
    state = names.get(short, "") if found["state"] in states else short
    written = f"{town}{found['comma']}{state}"
    if not found["zip"]:
        return written if state else None
    codes = _zips(value)
    if found["town"] == town and found["state"] == state:
        return f"{written}{found['gap']}{found['zip']}"
    if not codes or not state:
        return None
    at = int.from_bytes(draw.secret(b"ZIP code of " + value.encode()), "big") % len(codes)
    return f"{written}{found['gap']}{codes[at]}"


def _street(found: re.Match[str], draw: Prf, wanted: int) -> Pool | None:
    slots = [STREETS.slot(found["street"], wanted), _number(found["number"])]
    if found["door"]:
        slots.append(_number(found["door"]))
    rest = _TOWN.fullmatch(found["rest"]) if found["rest"] else None
    if found["rest"]:
        slots.append(_town(rest, wanted) if rest else None)
    known = [slot for slot in slots if slot is not None]
    if len(known) < len(slots):
        return None
    values = []
    for street, number, *others in side_by_side(known):
        value = f"{number}{found['gap']}{street}{found['suffix']}"
        value += f"{found['unit']}{others.pop(0)}" if found["door"] else ""
        if rest:
            town = _with_state(others.pop(0), rest, draw)
            if town is None:
                continue
            value += found["comma"] + town
        again = _STREET.fullmatch(value)
        if again and (again["street"], again["suffix"], again["gap"]) == (street, found["suffix"], found["gap"]):
            values.append(value)
    secret = found[0]
    alone = frozenset(re.findall(r"\w+", (found["suffix"] + (found["unit"] or "")).lower()))
    fixed = lambda word: word in alone or word.isdigit() or _fixed(word)  # noqa: E731
    return Pool(apart(values, secret, fixed), "address") if secret in values else None


def _number(digits: str) -> Slot:
    first = 10 ** (len(digits) - 1)
    values = tuple(map(str, range(first, 10 * first))) if digits[0] != "0" else (digits,)
    return block(values, values.index(digits))


def _zip_code(secret: str, most: int) -> Pool | None:
    """Of the same state, next to it in number."""
    if (slot := ZIPS.slot(secret)) is None:
        return None
    state = slot.kind.rpartition(" ")[2]
    codes = sorted(code for town, codes in ZIPS if town.endswith(f", {state}") for code in codes)
    start = codes.index(secret) // most * most
    return Pool(tuple(codes[start : start + most]), f"ZIP code in {state}")
