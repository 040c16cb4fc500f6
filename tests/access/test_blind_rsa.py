"""RSA blind signatures: RFC 9474's vectors, and what must be refused."""

from pathlib import Path
from unittest import mock

import gmpy2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from cloister.access import blind_rsa
from cloister.access.blind_rsa import VARIANTS, BlindSignatureError, Signer, Variant, blind, finalize, prepare, verify
from tests.access.vectors import KEY, SIGNER, read, unhex

PUBLIC = SIGNER.public


@pytest.mark.parametrize("number", range(4), ids=[variant.name for variant in VARIANTS])
def test_published_vectors(number: int, shared: Path) -> None:
    vector = read(shared / "vectors/blind-rsa/blindrsa-ts_test_vectors_rfc9474.json")[number]
    variant = VARIANTS[number]
    assert vector["name"] == variant.name
    p, q, d, n, e, inverse = (int.from_bytes(unhex(vector[name])) for name in ("p", "q", "d", "n", "e", "inv"))
    numbers = rsa.RSAPublicNumbers(e, n)
    key = rsa.RSAPrivateNumbers(p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), numbers).private_key()
    prefix = unhex(vector["msg_prefix"]) if variant.randomized else None
    prepared = prepare(unhex(vector["msg"]), variant, prefix)
    assert prepared == unhex(vector["input_msg"])
    salt = unhex(vector.get("salt", ""))
    blinded = blind(key.public_key(), prepared, variant, salt=salt, r=pow(inverse, -1, n))
    assert (blinded.message, blinded.inverse) == (unhex(vector["blinded_msg"]), inverse)
    signed = Signer(key).sign(blinded.message)
    assert signed == unhex(vector["blind_sig"])
    assert finalize(key.public_key(), prepared, signed, blinded, variant) == unhex(vector["sig"])


@given(message=st.binary(max_size=200), variant=st.sampled_from(VARIANTS))
def test_what_was_blinded_signed_and_finished_is_a_signature_of_the_message_alone(
    message: bytes, variant: Variant
) -> None:
    prepared = prepare(message, variant)
    blinded = blind(PUBLIC, prepared, variant)
    signature = finalize(PUBLIC, prepared, SIGNER.sign(blinded.message), blinded, variant)
    verify(PUBLIC, prepared, signature, variant)
    with pytest.raises(BlindSignatureError):
        verify(PUBLIC, prepared + b"!", signature, variant)
    other = VARIANTS[(VARIANTS.index(variant) ^ 1)]  # the other length of salt
    with pytest.raises(BlindSignatureError):
        verify(PUBLIC, prepared, signature, other)


def test_the_signer_sees_a_number_that_does_not_depend_on_the_message() -> None:
    """Every blinded message is possible for every message: there is one factor r for each pair."""
    prepared, variant = b"one message", blind_rsa.DETERMINISTIC_ZERO
    seen = int.from_bytes(blind(PUBLIC, prepared, variant).message)
    n = PUBLIC.public_numbers().n
    other = int.from_bytes(blind_rsa.pss_encode(b"another message", 2047, b""))
    r = SIGNER._private(gmpy2.mpz(seen) * gmpy2.invert(other, n) % n)
    assert blind(PUBLIC, b"another message", variant, r=int(r)).message == seen.to_bytes(256)


def test_each_blinding_is_new() -> None:
    assert len({blind(PUBLIC, b"message", blind_rsa.DETERMINISTIC_ZERO).message for _ in range(8)}) == 8


def test_a_number_outside_the_key_is_not_signed() -> None:
    n = PUBLIC.public_numbers().n
    for wrong in (n.to_bytes(256), b"\xff" * 256, b"\x01" * 255, b"\x01" * 257, b""):
        with pytest.raises(BlindSignatureError):
            SIGNER.sign(wrong)


def test_a_fault_while_signing_gives_nothing_away() -> None:
    right = gmpy2.powmod_sec
    blinded = blind(PUBLIC, b"message", blind_rsa.DETERMINISTIC)
    with (
        mock.patch.object(gmpy2, "powmod_sec", lambda base, exponent, modulus: right(base, exponent, modulus) + 1),
        pytest.raises(BlindSignatureError, match="Signing failed"),
    ):
        SIGNER.sign(blinded.message)


def test_an_answer_that_is_no_signature_is_refused() -> None:
    blinded = blind(PUBLIC, b"message", blind_rsa.DETERMINISTIC)
    signed = bytearray(SIGNER.sign(blinded.message))
    signed[100] ^= 1
    for wrong in (bytes(signed), bytes(signed[1:]), b"\xff" * 256, b""):
        with pytest.raises(BlindSignatureError):
            finalize(PUBLIC, b"message", wrong, blinded, blind_rsa.DETERMINISTIC)


def test_the_private_operation_is_gmps_constant_time_one_alone() -> None:
    """Neither Python's pow nor GMP's fast power ever gets the private exponent."""
    numbers = KEY.private_numbers()
    secret = {numbers.d, numbers.dmp1, numbers.dmq1}
    right, sure, used = gmpy2.powmod, gmpy2.powmod_sec, []

    def fast(base: object, exponent: object, modulus: object) -> object:
        assert int(exponent) not in secret  # type: ignore[call-overload]
        return right(base, exponent, modulus)

    def constant(base: object, exponent: object, modulus: object) -> object:
        used.append(int(exponent))  # type: ignore[call-overload]
        return sure(base, exponent, modulus)

    with mock.patch.object(gmpy2, "powmod", fast), mock.patch.object(gmpy2, "powmod_sec", constant):
        SIGNER.sign(blind(PUBLIC, b"message", blind_rsa.DETERMINISTIC).message)
    assert used == [numbers.dmp1, numbers.dmq1]
