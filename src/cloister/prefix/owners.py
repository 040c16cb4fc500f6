"""Whose pages are whose: tenants, each under a salt or none, and what all of a tenant's together hold.

Nobody is kept by name: an owner that has nothing in the tree, and whom nobody serves, is forgotten, and with a tenant's
last one its account and its key.
"""

from __future__ import annotations

from collections.abc import ItemsView
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from cloister.prefix.heap import Heap

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from cloister.prefix.base import PrefixKey
    from cloister.prefix.policy import Policy

TAG_BYTES = 6
USER_BITS = 32
NO_SEAT = -1


class Account:
    """What one tenant holds in the tree; all that is public is one account too."""

    __slots__ = ("__weakref__", "cipher", "heap", "name", "pages", "seen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.pages = 0
        """Resident pages that only this account's owners may see."""
        self.seen = 0
        """The epoch of its last request, whether or not that found anything."""
        self.cipher: AESGCM | None = None
        """With the key of its blocks in lower tiers; forgotten with the account."""
        self.heap = Heap()
        """Its runs that may be evicted (eviction.EvictionOrder)."""

    @property
    def is_common(self) -> bool:
        """Whether what it holds is several tenants'."""
        return not self.name


class Owner:
    """Whoever sees a private run: a tenant under one salt. Lower tiers bind blocks to its `tag`."""

    __slots__ = ("__weakref__", "account", "bit", "runs", "seat", "tag")

    def __init__(self, number: int, account: Account) -> None:
        self.account = account
        self.tag = number.to_bytes(TAG_BYTES, "little")
        self.bit = 1 << number % USER_BITS
        self.seat = NO_SEAT
        """Its number in the columns of the tree (runs.Runs), as long as runs are its."""
        self.runs = 0


class Owners:
    """By name, as long as somebody else holds them. `public` owns what everybody sees."""

    def __init__(self) -> None:
        self.public = Owner(0, Account(""))
        self._owners: WeakValueDictionary[tuple[str, str], Owner] = WeakValueDictionary()
        self._accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()
        self._numbers = count(1)

    def of(self, tenant: str, salt: str) -> Owner:
        owner = self._owners.get((tenant, salt))
        if owner is None:
            account = self._accounts.get(tenant)
            if account is None:
                account = self._accounts[tenant] = Account(tenant)
            owner = self._owners[tenant, salt] = Owner(next(self._numbers), account)
        return owner

    def whose(self, key: PrefixKey, policy: Policy) -> tuple[Owner, Owner]:
        """Who sees what this key inserts, if it is not public; and who brings it."""
        creator = self.of(key.tenant, key.salt)
        if not policy.everything_public:
            return creator, creator
        return (self.of("", key.salt) if key.salt else self.public), creator

    def account(self, tenant: str) -> Account | None:
        return self._accounts.get(tenant)

    @property
    def accounts(self) -> list[Account]:
        """Of tenants."""
        return list(self._accounts.values())

    def items(self) -> ItemsView[tuple[str, str], Owner]:
        return dict(self._owners).items()
