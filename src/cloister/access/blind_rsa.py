"""RSA blind signatures (RFC 9474), all four variants. Knows neither tokens nor messages' meaning.

The private operation takes the same time for every key and message: GMP's `powm_sec`, on a message that the signer has
blinded once more, so that the reductions around it tell nothing about the factors either.
"""

import hashlib
import secrets
from dataclasses import dataclass

import gmpy2
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from cloister.errors import CloisterError

HASH_BYTES = 48
PREFIX_BYTES = 32


class BlindSignatureError(CloisterError, code="blind_signature_invalid"):
    """A blind signature, or a message to be signed, that is not valid."""


@dataclass(frozen=True, slots=True)
class Variant:
    """RFC 9474 §5: the salt's length in PSS, and whether the message gets a random prefix."""

    name: str
    salt_bytes: int
    randomized: bool


RANDOMIZED = Variant("RSABSSA-SHA384-PSS-Randomized", HASH_BYTES, randomized=True)
RANDOMIZED_ZERO = Variant("RSABSSA-SHA384-PSSZERO-Randomized", 0, randomized=True)
DETERMINISTIC = Variant("RSABSSA-SHA384-PSS-Deterministic", HASH_BYTES, randomized=False)
DETERMINISTIC_ZERO = Variant("RSABSSA-SHA384-PSSZERO-Deterministic", 0, randomized=False)
VARIANTS = (RANDOMIZED, RANDOMIZED_ZERO, DETERMINISTIC, DETERMINISTIC_ZERO)


@dataclass(frozen=True, slots=True)
class Blinded:
    """§4.2's output: what goes to the signer, and the secret inverse that stays with the client."""

    message: bytes
    inverse: int


def prepare(message: bytes, variant: Variant, prefix: bytes | None = None) -> bytes:
    """§4.1 Prepare."""
    if not variant.randomized:
        return message
    prefix = secrets.token_bytes(PREFIX_BYTES) if prefix is None else prefix
    if len(prefix) != PREFIX_BYTES:
        raise BlindSignatureError("The random prefix of a message has another length.")
    return prefix + message


def blind(
    key: rsa.RSAPublicKey, prepared: bytes, variant: Variant, *, salt: bytes | None = None, r: int | None = None
) -> Blinded:
    """§4.2 Blind. `salt` and `r` are drawn; only test vectors give them."""
    modulus, size = key.public_numbers().n, key.key_size
    salt = secrets.token_bytes(variant.salt_bytes) if salt is None else salt
    encoded = int.from_bytes(pss_encode(prepared, size - 1, salt))
    if gmpy2.gcd(encoded, modulus) != 1:
        raise BlindSignatureError("The message shares a factor with the key.")
    r = 1 + secrets.randbelow(modulus - 1) if r is None else r
    # A second random factor hides r from the time that the inversion takes.
    mask = 1 + secrets.randbelow(modulus - 1)
    try:
        inverse = gmpy2.invert(r * mask % modulus, modulus) * mask % modulus
    except ZeroDivisionError:
        raise BlindSignatureError("The blinding factor cannot be inverted.") from None
    x = gmpy2.powmod(r, key.public_numbers().e, modulus)
    return Blinded(int(encoded * x % modulus).to_bytes(-(-size // 8)), int(inverse))


class Signer:
    """§4.3 BlindSign with one private key."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        numbers = key.private_numbers()
        self.public = key.public_key()
        self._p, self._q, self._d_p, self._d_q, self._q_inverse = map(
            gmpy2.mpz, (numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp)
        )
        self._n, self._e = gmpy2.mpz(numbers.public_numbers.n), gmpy2.mpz(numbers.public_numbers.e)
        self._bytes = -(-key.key_size // 8)

    def sign(self, blinded: bytes) -> bytes:
        message = int.from_bytes(blinded)
        if len(blinded) != self._bytes or message >= self._n:
            raise BlindSignatureError("A blinded message is not a number below the key's modulus.")
        hiding = gmpy2.mpz(1 + secrets.randbelow(int(self._n) - 1))
        hidden = message * gmpy2.powmod(hiding, self._e, self._n) % self._n
        signed = self._private(hidden) * gmpy2.invert(hiding, self._n) % self._n
        if gmpy2.powmod(signed, self._e, self._n) != message:  # a fault would give a factor of n away
            raise BlindSignatureError("Signing failed.")
        return int(signed).to_bytes(self._bytes)

    def _private(self, message: gmpy2.mpz) -> gmpy2.mpz:
        by_p = gmpy2.powmod_sec(message % self._p, self._d_p, self._p)
        by_q = gmpy2.powmod_sec(message % self._q, self._d_q, self._q)
        return by_q + self._q * ((by_p - by_q) * self._q_inverse % self._p)


def finalize(
    key: rsa.RSAPublicKey, prepared: bytes, blinded_signature: bytes, blinded: Blinded, variant: Variant
) -> bytes:
    """§4.4 Finalize: the signature, once it is valid."""
    modulus, length = key.public_numbers().n, -(-key.key_size // 8)
    signed = int.from_bytes(blinded_signature)
    if len(blinded_signature) != length or signed >= modulus:
        raise BlindSignatureError("A blind signature is not a number below the key's modulus.")
    signature = (signed * blinded.inverse % modulus).to_bytes(length)
    verify(key, prepared, signature, variant)
    return signature


def verify(key: rsa.RSAPublicKey, prepared: bytes, signature: bytes, variant: Variant) -> None:
    """§4.5: BlindSignatureError unless the signature is valid (RFC 8017, RSASSA-PSS-VERIFY)."""
    scheme = padding.PSS(padding.MGF1(hashes.SHA384()), variant.salt_bytes)
    try:
        key.verify(signature, prepared, scheme, hashes.SHA384())
    except InvalidSignature:
        raise BlindSignatureError("The signature is not valid.") from None


def pss_encode(message: bytes, bits: int, salt: bytes) -> bytes:
    """EMSA-PSS-ENCODE (RFC 8017 §9.1.1) with SHA-384 and MGF1."""
    length = -(-bits // 8)
    if length < HASH_BYTES + len(salt) + 2:
        raise BlindSignatureError("The key is too short.")
    digest = hashlib.sha384(bytes(8) + hashlib.sha384(message).digest() + salt).digest()
    data = bytes(length - len(salt) - HASH_BYTES - 2) + b"\x01" + salt
    masked = bytearray(one ^ other for one, other in zip(data, _mgf1(digest, len(data)), strict=True))
    masked[0] &= 0xFF >> (8 * length - bits)
    return bytes(masked) + digest + b"\xbc"


def _mgf1(seed: bytes, length: int) -> bytes:
    """RFC 8017 §B.2.1."""
    blocks = (hashlib.sha384(seed + counter.to_bytes(4)).digest() for counter in range(-(-length // HASH_BYTES)))
    return b"".join(blocks)[:length]
