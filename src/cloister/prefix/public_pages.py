"""Pages that are public: registered, or sent by many accounts: n + Laplace(1/ε) > T. The noise is a keyed PRF of the
page, drawn once for ever. One account changes n by at most 1: whether a page is shared is ε-private."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import takewhile
from math import exp, log
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.errors import SetupError
from cloister.prefix.base import AFTER_PUBLIC, TOKEN_BYTES, Paging

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


ALL = "all"
MAX_TEMPLATES, MAX_TEMPLATES_BYTES = 1024, 8 << 20


class Template(Struct, frozen=True, forbid_unknown_fields=True):
    """`tokenizer` is the SHA-256, in hex, of the tokenizer that made the tokens; `accounts` may be ("all",)."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    accounts: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(min_length=1, max_length=256)]
    tokenizer: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    tokens: Annotated[tuple[Annotated[int, Meta(ge=0, lt=AFTER_PUBLIC)], ...], Meta(min_length=1, max_length=1 << 20)]


def read_templates(text: str) -> tuple[Template, ...]:
    """One template a line, as JSON."""
    lines = text.splitlines()
    if len(lines) > MAX_TEMPLATES:
        raise SetupError(f"There are more than {MAX_TEMPLATES} templates.", hint="Register fewer.")
    try:
        return tuple(msgspec.json.decode(line, type=Template) for line in lines)
    except msgspec.DecodeError:
        raise SetupError("A template is not well formed.", hint="Write it with `cloister cache register`.") from None


class Templates:
    """A request's own mark registers nothing: an account that marks its guess would find what another marked."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._registered: dict[bytes, frozenset[str]] = {}

    def replace(self, templates: Iterable[Template], page_tokens: int) -> None:
        registered: dict[bytes, frozenset[str]] = {}
        for template in templates:
            tokens = Paging(0, len(template.tokens), page_tokens).pack(template.tokens)
            for page in page_digests(self._secret, tokens, page_tokens * TOKEN_BYTES):
                registered[page] = registered.get(page, frozenset()) | set(template.accounts)
        self._registered = registered

    def covers(self, account: str, pages: Sequence[bytes]) -> int:
        """How many of the first pages are registered for this account."""
        named = {ALL, account}
        return sum(1 for _ in takewhile(lambda page: not named.isdisjoint(self._registered.get(page, ())), pages))
