"""Check digits (ISO/IEC 7812-1 (Luhn), ISO 13616 (IBAN), ISO 7064, countries' rules) and plans of phone numbers
(E.164). Seven digits or more are private (SafeKV §VIII-A), except ranges of years and decimals."""
# ruff: noqa: E501 (tables)

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cloister.messages.controller_detector import Category

FEWEST = 7


class Kind(NamedTuple):
    category: Category
    name: str


_PLAIN = re.compile(r"\d+\.\d+")
_YEARS = re.compile(r"(?:1\d|20)\d\d\s?[-/]\s?(?:1\d|20)\d\d")
_BY_LENGTH: dict[int, tuple[str, ...]] = {
    9: ("us_routing", "nl_bsn", "pt_nif"),
    10: ("us_phone", "gb_nhs"),
    11: ("us_phone", "pl_pesel", "br_cpf", "de_tax", "tr_kimlik", "be_nrn", "no_fodselsnummer", "ru_snils"),
    12: ("in_aadhaar", "jp_my_number", "card"),
    13: ("kr_rrn", "card"),
    15: ("fr_nir", "card"),
    18: ("cn_resident", "card"),
}
_FINANCIAL = {"card", "us_routing"}
_PHONES = {"phone", "us_phone"}


def kind_of_digits(run: str) -> Kind | None:
    run = run.strip()
    digits = "".join(each for each in run if "0" <= each <= "9")
    if len(digits) < FEWEST or _PLAIN.fullmatch(run) or _YEARS.fullmatch(run) or not digits.strip("0"):
        return None
    if run[0] == "+" or digits.startswith("00"):
        return Kind(Category.SOCIAL, "phone") if CHECKS["phone"](digits) else Kind(Category.NUMBER, "digits")
    for name in _BY_LENGTH.get(len(digits), ("card",)):
        if CHECKS[name](digits):
            category = Category.FINANCIAL if name in _FINANCIAL else Category.IDENTITY
            return Kind(Category.SOCIAL if name in _PHONES else category, name.replace("_", "-"))
    return Kind(Category.NUMBER, "digits")


Check = Callable[[str], bool]

CHECKS: dict[str, Check] = {}  # by the names that rules use


def _named(check: Check) -> Check:
    CHECKS[check.__name__] = check
    return check


def _digits(length: int) -> Callable[[Check], Check]:

    def register(check: Check) -> Check:
        CHECKS[check.__name__] = found = lambda number: _plain(number, length) and check(number)
        return found

    return register


def _plain(number: str, length: int) -> bool:
    return number.isdigit() and len(number) == length and len(set(number)) > 1


def _weighted(number: str, weights: Sequence[int]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(number, weights, strict=False))


@_named
def luhn(number: str) -> bool:
    """ISO/IEC 7812-1: cards, IMEIs, Canadian, Swedish, South African and Israeli ids."""
    if not number.isdigit() or len(set(number)) == 1:
        return False
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in number[-2::-2])
    return (sum(int(digit) for digit in number[::-2]) + sum(doubled)) % 10 == 0


@_named
def card(number: str) -> bool:
    return 12 <= len(number) <= 19 and number[0] in "23456" and luhn(number)


IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28, "CH": 21,
    "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FO": 18, "FR": 27,
    "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
    "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27, "MD": 24,
    "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18, "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29,
    "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "TN": 24, "TR": 26, "UA": 29, "VA": 22,
    "VG": 24, "XK": 20,
}  # fmt: skip


@_named
def iban(number: str) -> bool:
    """ISO 13616: the country's length, and remainder 1 modulo 97."""
    number = number.upper()
    if IBAN_LENGTHS.get(number[:2]) != len(number) or not (number.isascii() and number.isalnum()):
        return False
    return int("".join(str(int(each, 36)) for each in number[4:] + number[:4])) % 97 == 1


@_digits(9)
def us_ssn(number: str) -> bool:
    """United States: no area 000 or 666, no group 00, no serial 0000. Areas from 900 on are taxpayer numbers (ITIN)."""
    return number[:3] not in ("000", "666") and number[3:5] != "00" and number[5:] != "0000"


@_digits(11)
def de_tax(number: str) -> bool:
    """Germany, Steuer-ID: ISO 7064 mod 11, 10."""
    product = 10
    for digit in number[:10]:
        total = (int(digit) + product) % 10 or 10
        product = 2 * total % 11
    return number[0] != "0" and (11 - product) % 10 == int(number[10])


@_named
def fr_nir(number: str) -> bool:
    """France, numéro de sécurité sociale: 13 digits and their complement to 97; Corsica's 2A, 2B count as 19, 18."""
    digits = number.upper().replace("2A", "19", 1).replace("2B", "18", 1)
    return _plain(digits, 15) and digits[0] in "1278" and 97 - int(digits[:13]) % 97 == int(digits[13:])


@_named
def es_dni(number: str) -> bool:
    """Spain, DNI and NIE: the letter is the number mod 23."""
    number = number.upper()
    if len(number) != 9 or not number[1:8].isdigit() or number[0] not in "0123456789XYZ":
        return False
    return number[8] == "TRWAGMYFPDXBNJZSQVHLCKE"[int(number[:8].translate(str.maketrans("XYZ", "012"))) % 23]


_IT_ODD = dict(zip("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", (
    1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24,
    23), strict=True))  # fmt: skip


@_named
def it_codice(number: str) -> bool:
    number = number.upper()
    if len(number) != 16 or not (number.isascii() and number.isalnum() and number[:6].isalpha()):
        return False
    even = (int(each) if each.isdigit() else ord(each) - 65 for each in number[1:15:2])
    return chr(65 + (sum(_IT_ODD[each] for each in number[:15:2]) + sum(even)) % 26) == number[15]


def _divides(name: str, modulus: int, weights: Sequence[int]) -> None:
    CHECKS[name] = lambda number: _plain(number, len(weights)) and _weighted(number, weights) % modulus == 0


_divides("nl_bsn", 11, (9, 8, 7, 6, 5, 4, 3, 2, -1))  # Netherlands, BSN: the eleven test
_divides("pl_pesel", 10, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1))  # Poland
_divides("us_routing", 10, (3, 7, 1) * 3)  # United States, ABA routing number


@_digits(11)
def be_nrn(number: str) -> bool:
    return any(97 - int(front + number[:9]) % 97 == int(number[9:]) for front in ("", "2"))


@_digits(11)
def br_cpf(number: str) -> bool:
    checks = (_weighted(number[:count], range(count + 1, 1, -1)) * 10 % 11 % 10 for count in (9, 10))
    return [*checks] == [int(digit) for digit in number[9:]]


@_digits(9)
def pt_nif(number: str) -> bool:
    rest = 11 - _weighted(number[:8], range(9, 1, -1)) % 11
    return number[0] in "1235689" and (0 if rest >= 10 else rest) == int(number[8])


_VERHOEFF_D = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678", "5987604321", "6598710432", "7659821043",
    "8765932104", "9876543210",
)  # fmt: skip
_VERHOEFF_P = (
    "0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip


@_digits(12)
def in_aadhaar(number: str) -> bool:
    check = 0
    for place, digit in enumerate(reversed(number)):
        check = int(_VERHOEFF_D[check][int(_VERHOEFF_P[place % 8][int(digit)])])
    return number[0] not in "01" and check == 0


@_named
def cn_resident(number: str) -> bool:
    number = number.upper()
    if len(number) != 18 or not number[:17].isdigit():
        return False
    rest = sum(int(digit) * (1 << (17 - place)) for place, digit in enumerate(number[:17])) % 11
    return "10X98765432"[rest] == number[17]


@_digits(12)
def jp_my_number(number: str) -> bool:
    rest = _weighted(number[:11], (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return (0 if rest <= 1 else 11 - rest) == int(number[11])


@_digits(13)
def kr_rrn(number: str) -> bool:
    return (11 - _weighted(number[:12], (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10 == int(number[12])


@_digits(11)
def tr_kimlik(number: str) -> bool:
    digits = [int(each) for each in number]
    tenth = (7 * sum(digits[0:9:2]) - sum(digits[1:8:2])) % 10
    return digits[0] != 0 and tenth == digits[9] and sum(digits[:10]) % 10 == digits[10]


@_digits(11)
def no_fodselsnummer(number: str) -> bool:
    first = 11 - _weighted(number[:9], (3, 7, 6, 1, 8, 9, 4, 5, 2)) % 11
    second = 11 - _weighted(number[:10], (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return (first % 11, second % 11) == (int(number[9]), int(number[10]))


@_digits(11)
def ru_snils(number: str) -> bool:
    return _weighted(number[:9], range(9, 0, -1)) % 101 % 100 == int(number[9:])


@_named
def fi_hetu(number: str) -> bool:
    number = number.upper()
    if len(number) != 11 or not (number[:6] + number[7:10]).isdigit() or number[6] not in "+-ABCDEFYXWVU":
        return False
    return "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(number[:6] + number[7:10]) % 31] == number[10]


@_named
def gb_nino(number: str) -> bool:
    number = number.upper()
    if len(number) != 9 or not number[2:8].isdigit() or number[8] not in "ABCD" or not number[:2].isalpha():
        return False
    banned = number[:2] in ("BG", "GB", "NK", "KN", "TN", "NT", "ZZ")
    return not banned and number[0] not in "DFIQUV" and number[1] not in "DFIOQUV"


@_digits(10)
def gb_nhs(number: str) -> bool:
    return (11 - _weighted(number[:9], range(10, 1, -1)) % 11) % 11 == int(number[9])


_VIN_VALUES = dict(zip("ABCDEFGHJKLMNPRSTUVWXYZ0123456789", map(int, "123456781234579234567890123456789"), strict=True))


@_named
def vin(number: str) -> bool:
    """A vehicle: ISO 3779, North America's check in the ninth place."""
    number = number.upper()
    if len(number) != 17 or not set(number) <= _VIN_VALUES.keys():
        return False
    weights = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
    total = sum(_VIN_VALUES[each] * weight for each, weight in zip(number, weights, strict=True))
    return "0123456789X"[total % 11] == number[8]


PHONE_PLANS = {
    "1": (10,), "7": (10,), "20": (8, 9, 10), "27": (9,), "30": (10,), "31": (9,), "32": (8, 9), "33": (9,), "34": (9,),
    "36": (8, 9), "39": (6, 7, 8, 9, 10, 11), "40": (9,), "41": (9,), "43": tuple(range(5, 14)), "44": (9, 10), "45": (8,),
    "46": tuple(range(7, 11)), "47": (8,), "48": (9,), "49": tuple(range(5, 13)), "51": (8, 9), "52": (10,), "54": (10, 11),
    "55": (10, 11), "56": (9,), "57": (8, 10), "60": (8, 9, 10), "61": (9,), "62": tuple(range(8, 13)), "63": (9, 10),
    "64": (8, 9, 10), "65": (8,), "66": (8, 9), "81": (9, 10), "82": (8, 9, 10), "84": (9, 10), "86": (10, 11), "90": (10,),
    "91": (10,), "92": (9, 10), "94": (9,), "98": (10,), "212": (9,), "213": (8, 9), "234": (8, 10), "254": (9,), "351": (9,),
    "352": tuple(range(6, 10)), "353": (8, 9), "354": (7,), "358": tuple(range(6, 12)), "359": (8, 9), "370": (8,), "371": (8,),
    "372": (7, 8), "380": (9,), "385": (8, 9), "386": (8,), "420": (9,), "421": (9,), "852": (8,), "880": (10,), "886": (8, 9),
    "961": (7, 8), "962": (8, 9), "964": (10,), "965": (8,), "966": (9,), "971": (8, 9), "972": (8, 9), "974": (8,),
}  # fmt: skip  # country code → how many digits follow it (ITU-T E.164, national numbering plans)


@_named
def phone(number: str) -> bool:
    """An international number: a country's code and its plan's digits; unknown countries by E.164 alone."""
    digits = number.removeprefix("+").removeprefix("00")
    if not digits.isdigit():
        return False
    for length in (3, 2, 1):
        if (plan := PHONE_PLANS.get(digits[:length])) is not None:
            return len(digits) - length in plan
    return 8 <= len(digits) <= 15


@_named
def us_phone(number: str) -> bool:
    """North America: neither area nor exchange begins with 0 or 1."""
    digits = number.removeprefix("+")
    digits = digits[1:] if len(digits) == 11 and digits[0] == "1" else digits
    return _plain(digits, 10) and digits[0] not in "01" and digits[3] not in "01"
