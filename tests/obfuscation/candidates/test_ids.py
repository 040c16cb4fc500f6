"""Numbers in the same form, with valid check digits, drawn by a cipher whose published vectors hold."""

from __future__ import annotations

import re

import pytest

from cloister.detection.checksums import CHECKS
from cloister.obfuscation.candidates.base import POOL_VALUES, Around
from cloister.obfuscation.candidates.ff1 import Ff1, permuted
from cloister.obfuscation.candidates.ids import Ids, form_of
from cloister.obfuscation.index import Prf
from cloister.obfuscation.language_model import shape_of

LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
KEY = "2B7E151628AED2A6ABF7158809CF4F3C"
LONGER, LONGEST = KEY + "EF4359D8D580AA4F", KEY + "EF4359D8D580AA4F7F036D6F04FC6A94"


def values(secret: str, key: int = 0) -> tuple[str, ...]:
    found = Ids().pool(secret, Around("", ""), Prf(bytes([key]) * 32))
    assert found is not None and secret in found.values
    return found.values


@pytest.mark.parametrize(
    ("key", "radix", "tweak", "plain", "cipher"),
    [
        (KEY, 10, "", "0123456789", "2433477484"),
        (KEY, 10, "39383736353433323130", "0123456789", "6124200773"),
        (KEY, 36, "3737373770717273373737", "0123456789abcdefghi", "a9tv40mll9kdu509eum"),
        (LONGER, 10, "", "0123456789", "2830668132"),
        (LONGEST, 10, "", "0123456789", "6657667009"),
    ],
)
def test_ff1_vectors_of_nist(key: str, radix: int, tweak: str, plain: str, cipher: str) -> None:
    """Samples 1, 2, 3, 4 and 7 of NIST's examples for SP 800-38G."""
    found = Ff1(bytes.fromhex(key), radix, bytes.fromhex(tweak)).encrypt([LETTERS.index(each) for each in plain])
    assert "".join(LETTERS[each] for each in found) == cipher


def test_a_key_draws_a_permutation() -> None:
    assert sorted(permuted(bytes(32), number, 1000) for number in range(1000)) == [*range(1000)]
    assert permuted(bytes(32), 7, 1000) != permuted(b"1" * 32, 7, 1000)


CHECKED = {
    "4539 1488 0343 6467": "card",
    "DE89 3704 0044 0532 0130 00": "iban",
    "521-44-9382": "us_ssn",
    "(952) 664-1376": "us_phone",
}


@pytest.mark.parametrize(("secret", "check"), CHECKED.items())
def test_check_digits_hold(secret: str, check: str) -> None:
    found = values(secret)
    assert len(found) == POOL_VALUES and {shape_of(value) for value in found} == {shape_of(secret)}
    assert all(CHECKS[check]("".join(each for each in value if each.isalnum())) for value in found)


@pytest.mark.parametrize(
    "secret", ["AHC-0933289", "X1234567", "2019-00123", "214.101.147.65", "d9:53:26:bc:22:0f", "1234567893"]
)
def test_members_have_the_same_form(secret: str) -> None:
    found = values(secret)
    assert len(found) >= 15 and {form_of(value) == form_of(secret) for value in found} == {True}


def test_small_sets_are_cut_into_cells_by_the_key() -> None:
    found = values("0012")
    assert all(values(value) == found for value in found) and values("0012", 1) != found


def test_each_key_draws_others_and_the_same_key_the_same() -> None:
    assert values("521-44-9382") == values("521-44-9382")
    assert len({*values("521-44-9382")} & {*values("521-44-9382", 1)}) < 3


def test_an_email_address_is_another_persons() -> None:
    found = values("john.miller12@yahoo.com")
    assert len(found) >= 16 and all(values(value) == found for value in found[::8])
    assert Ids().pool("john.miller@a-small-company.com", Around("", ""), Prf(bytes(32))) is None


@pytest.mark.parametrize(
    ("secret", "text", "stays"),
    [
        ("4539 1488 0343 6467", "My card", "4539"),
        ("+41 44 668 18 00", "Mobile", "+41 44"),
        ("0490 75 40 81", "Phone", "0490 "),
        ("1026367", "Zip 36367, record", "6367"),
        ("(416) 664-1376", "Phone", "("),
    ],
)
def test_digits_stay_that_others_would_not_have(secret: str, text: str, stays: str) -> None:
    around = Around(text, "", 16)
    found = Ids().pool(secret, around, Prf(bytes(32)))
    assert found is not None and len(found.values) > 8 and all(stays in value for value in found.values)
    assert stays in ("6367", "(") or all(value.startswith(stays) for value in found.values)
    forms = {form_of(value, "36367") for value in found.values} if stays == "6367" else {form_of(secret)}
    assert len(forms) == 1


def test_an_area_code_is_of_the_same_country() -> None:
    assert {value[:5] for value in values("(416) 664-1376")} & {
        value[:5] for value in values("(212) 664-1376")
    } == set()


@pytest.mark.parametrize("secret", ["604-696-5272x565", "+1-604-696-5272 ext 565", "001-604-696-5272x56561"])
def test_a_phone_number_keeps_the_sign_of_its_extension(secret: str) -> None:
    """Other letters would show: a number with another sign there is no phone number."""
    sign = "ext" if "ext" in secret else "x"
    assert len(values(secret)) > 8 and all(re.sub("[^a-z]", "", value) == sign for value in values(secret))
