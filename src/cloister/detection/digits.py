"""Classifies runs of digits, with any separators: `4 1 1 1 - 1 1 1 1 …` is a card (SafeKV §VIII-A).
Seven digits or more are private, except ranges of years and decimals. Check digits give the category."""

from __future__ import annotations

import re
from typing import NamedTuple

from cloister.detection.checksums import CHECKS
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
    """None if they are not private."""
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
