"""FF1 of NIST SP 800-38G (2016), Algorithm 7: encryption of a string of numerals into one of the same length.
A key draws one permutation; numbers below a bound that is no power are reached by cycle walking."""

from collections.abc import Sequence

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

FEWEST_BITS = 8  # of a set: radix**minlen >= 100. Attacks on small sets need many numbers under one key: here one


class Ff1:
    def __init__(self, key: bytes, radix: int, tweak: bytes = b"") -> None:
        if not 2 <= radix <= 2**16:
            raise ValueError("a radix is from 2 to 65536")
        self._block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update
        self._radix = radix
        self._tweak = tweak

    def encrypt(self, numerals: Sequence[int]) -> list[int]:
        radix, n, t = self._radix, len(numerals), len(self._tweak)
        u = n // 2  # step 1
        v = n - u
        b = -(-(radix**v - 1).bit_length() // 8)  # step 3
        d = 4 * -(-b // 4) + 4  # step 4
        head = (
            bytes((1, 2, 1))
            + radix.to_bytes(3, "big")
            + bytes((10, u % 256))
            + n.to_bytes(4, "big")
            + t.to_bytes(4, "big")
        )
        left, right = self._num(numerals[:u]), self._num(numerals[u:])
        for i in range(10):  # step 6
            tail = bytes((-t - b - 1) % 16) + bytes((i,)) + right.to_bytes(b, "big")
            r = self._prf(head + self._tweak + tail)
            s = r + b"".join(self._block(_xor(r, j.to_bytes(16, "big"))) for j in range(1, -(-d // 16)))
            left, right = right, (left + int.from_bytes(s[:d], "big")) % radix ** (u if i % 2 == 0 else v)
        return [*self._str(left, u), *self._str(right, v)]

    def _prf(self, text: bytes) -> bytes:
        chain = bytes(16)
        for at in range(0, len(text), 16):
            chain = self._block(_xor(chain, text[at : at + 16]))
        return chain

    def _num(self, numerals: Sequence[int]) -> int:
        number = 0
        for each in numerals:
            number = number * self._radix + each
        return number

    def _str(self, number: int, length: int) -> list[int]:
        out = []
        for _ in range(length):
            number, each = divmod(number, self._radix)
            out.append(each)
        return out[::-1]


def permuted(key: bytes, number: int, count: int) -> int:
    """The number's place in a permutation of 0..count-1 that the key draws."""
    bits = max(FEWEST_BITS, (count - 1).bit_length())
    cipher = Ff1(key, 2)
    while True:
        digits = cipher.encrypt([number >> place & 1 for place in range(bits - 1, -1, -1)])
        number = int("".join(map(str, digits)), 2)
        if number < count:
            return number


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(16, "big")
