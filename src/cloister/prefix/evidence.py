"""Which pages are public by evidence: many accounts sent this very page (with all before it) already. A page is shared
when n + Laplace(1/ε) > T. The noise belongs to the page for ever: a keyed PRF of its content, which neither eviction
nor a restart draws again. One account changes n by at most 1, so whether one page is shared is ε-private."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from math import exp, log

SECRET_BYTES = 32
DIGEST_BYTES = 16
_BITS = 128  # a collision counts two accounts as one, which keeps a page private


def page_digests(secret: bytes, tokens: bytes, page_bytes: int) -> list[bytes]:
    """One for each whole page; it names the page together with every page before it."""
    digests, before = [], b""
    for end in range(page_bytes, len(tokens) + 1, page_bytes):
        page = blake2b(before + tokens[end - page_bytes : end], key=secret, person=b"page", digest_size=DIGEST_BYTES)
        before = page.digest()
        digests.append(before)
    return digests


def laplace(secret: bytes, page: bytes, epsilon: float) -> float:
    drawn = int.from_bytes(blake2b(page, key=secret, person=b"noise", digest_size=8).digest(), "little")
    uniform = (drawn + 0.5) / 2**64
    return (log(2 * uniform) if uniform < 0.5 else -log(2 * (1 - uniform))) / epsilon


def attack_gain(identities: int, epsilon: float, threshold: float) -> float:
    """The probability that a page of one victim and of all attackers' accounts is shared: what a guess may show."""
    missing = epsilon * (threshold - identities - 1)
    return exp(-missing) / 2 if missing > 0 else 1 - exp(missing) / 2


class Evidence:
    """Counts accounts in one bitmap a page, whose bits are keyed: a bitmap names no account. Pages that one account
    sent make room for each other only, so a flood by one account forgets nothing that several share."""

    def __init__(self, secret: bytes, epsilon: float, threshold: float, capacity: int = 65_536) -> None:
        self._secret, self._epsilon, self._threshold = secret, epsilon, threshold
        self._capacity = capacity // 2
        self._single: OrderedDict[bytes, int] = OrderedDict()
        self._several: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._single) + len(self._several)

    def count(self, account: str, pages: Sequence[bytes]) -> int:
        """Adds the account's vote to every page. Returns how many are public, up to the first that is not."""
        public = [self._vote(account, page) + self._noise(page) > self._threshold for page in pages]
        return (*public, False).index(False)

    def _noise(self, page: bytes) -> float:
        return laplace(self._secret, page, self._epsilon)

    def _vote(self, account: str, page: bytes) -> int:
        digest = blake2b(page + account.encode(), key=self._secret, person=b"vote", digest_size=1).digest()
        bit = 1 << digest[0] % _BITS
        votes = self._single.pop(page, 0) or self._several.pop(page, 0)
        votes |= bit
        kept = self._single if votes == bit else self._several
        kept[page] = votes
        if len(kept) > self._capacity:
            kept.popitem(last=False)
        return votes.bit_count()
