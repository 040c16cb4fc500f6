"""Each check takes a number that is right and refuses it with any one digit changed to another, where its rule can."""

from __future__ import annotations

import pytest

from cloister.detection.checksums import CHECKS, kind_of_digits
from cloister.messages.controller_detector import Category

RIGHT = {
    "luhn": "79927398713",
    "card": "4111111111111111",
    "iban": "GB29NWBK60161331926819",
    "de_tax": "36574261809",
    "fr_nir": "255081416802538",
    "es_dni": "12345678Z",
    "it_codice": "RSSMRA85T10A562S",
    "nl_bsn": "111222333",
    "be_nrn": "85073003328",
    "pl_pesel": "44051401359",
    "br_cpf": "52998224725",
    "in_aadhaar": "234123412346",
    "cn_resident": "11010519491231002X",
    "tr_kimlik": "10000000146",
    "ru_snils": "11223344595",
    "fi_hetu": "131052-308T",
    "gb_nhs": "9434765919",
    "us_routing": "021000021",
    "vin": "1HGCM82633A004352",
}
EVERY_DIGIT = {"luhn", "card", "iban", "es_dni", "pl_pesel", "in_aadhaar", "cn_resident", "nl_bsn", "de_tax"}
"""Whose rule sees every change of one digit."""


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_number_passes_and_a_changed_one_does_not(name: str) -> None:
    check, number = CHECKS[name], RIGHT[name]
    assert check(number)
    changed = [
        number[:place] + other + number[place + 1 :]
        for place, digit in enumerate(number)
        if digit.isdigit()
        for other in "0123456789"
        if other != digit
    ]
    passing = sum(check(each) for each in changed)
    assert passing == 0 if name in EVERY_DIGIT else passing < len(changed) / 5


@pytest.mark.parametrize("name", CHECKS)
def test_no_check_fails_on_nonsense(name: str) -> None:
    for nonsense in ("", "0", "000000000", "x" * 40, "١٢٣٤٥٦٧٨٩", "12 34", "9" * 400):
        assert CHECKS[name](nonsense) in (True, False)


@pytest.mark.parametrize(
    ("number", "valid"),
    [
        ("+14155552671", True),
        ("+4930123456", True),
        ("+331234567890123", False),
        ("0033612345678", True),
        ("+1", False),
    ],
)
def test_a_phone_number_has_its_countrys_length(number: str, valid: bool) -> None:
    assert CHECKS["phone"](number) is valid


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("4 1 1 1 - 1 1 1 1 - 1 1 1 1 - 1 1 1 1", "card"),
        ("+49 30 123456", "phone"),
        ("(415) 555-2671", "us-phone"),
        ("440514 01359", "pl-pesel"),
        ("1234567", "digits"),
    ],
)
def test_digits_are_known_whatever_separates_them(run: str, name: str) -> None:
    kind = kind_of_digits(run)
    assert kind is not None and kind.name == name


@pytest.mark.parametrize("run", ["3.14159265", "2019-2024", "0000000", "123456"])
def test_decimals_years_and_zeros_are_nobodys(run: str) -> None:
    assert kind_of_digits(run) is None


def test_a_card_is_financial() -> None:
    kind = kind_of_digits("4111 1111 1111 1111")
    assert kind is not None and kind.category is Category.FINANCIAL
