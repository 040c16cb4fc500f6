"""Keys of pages of two tokens, for the tests of the prefix cache."""

from __future__ import annotations

import struct
from itertools import count

from hypothesis import strategies as st

from cloister.levels import PolicyName
from cloister.prefix.base import Paging, PrefixKey
from cloister.prefix.radix import RadixCache

PAGE_TOKENS = 2
SIZE = PAGE_TOKENS * 4
_NUMBERS = count(1_000_000)


def pages(*tokens: int) -> bytes:
    """One page for each number."""
    return b"".join(struct.pack("<2i", token, token + 100) for token in tokens)


def pages_in(cache: RadixCache) -> int:
    return sum(node.pages for node in cache.tree.nodes())


def key_of(
    tokens: bytes,
    tenant: str = "a",
    salt: str = "",
    policy: PolicyName = "partition",
    number: int | None = None,
    marked: int = 0,
) -> PrefixKey:
    """A request of its own, unless its number is given."""
    paging = Paging(marked * PAGE_TOKENS, len(tokens) // 4, PAGE_TOKENS)
    return PrefixKey(next(_NUMBERS) if number is None else number, tenant, salt, policy, paging, tokens)


KEYS = st.builds(
    key_of,
    st.lists(st.sampled_from((1, 2)), min_size=1, max_size=6).map(lambda tokens: pages(*tokens)),
    st.sampled_from("abc"),
    st.sampled_from(("", "", "s")),
    st.sampled_from(("global", "partition", "counted")),
    st.integers(0, 9),
    st.integers(0, 3),
)
