"""Who sees which pages: a namespace is one tenant under one salt. Both are held weakly; their keys go with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from cloister.prefix.queue import EvictionQueue

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from cloister.prefix.base import PrefixKey
    from cloister.prefix.policy import Policy

TAG_BYTES = 6


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Tenant:
    """One tenant's record. All shared pages together have a record too, whose name is empty."""

    name: str
    pages: int = 0  # in the pool, seen only by this tenant
    last_request: int = 0  # epoch, whether or not the request found anything
    cipher: AESGCM | None = None  # of its blocks in lower tiers
    queue: EvictionQueue = field(default_factory=EvictionQueue)

    @property
    def is_shared(self) -> bool:
        return not self.name


class Namespace:
    """Lower tiers bind blocks to the `tag`."""

    __slots__ = ("__weakref__", "tag", "tenant")

    def __init__(self, number: int, tenant: Tenant) -> None:
        self.tenant = tenant
        self.tag = number.to_bytes(TAG_BYTES, "little")


class Namespaces:
    def __init__(self) -> None:
        self.public = Namespace(0, Tenant(""))
        self._namespaces: WeakValueDictionary[tuple[str, str], Namespace] = WeakValueDictionary()
        self._tenants: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
        self._numbers = count(1)

    def get(self, name: str, salt: str) -> Namespace:
        namespace = self._namespaces.get((name, salt))
        if namespace is None:
            tenant = self._tenants.get(name)
            if tenant is None:
                tenant = self._tenants[name] = Tenant(name)
            namespace = self._namespaces[name, salt] = Namespace(next(self._numbers), tenant)
        return namespace

    def of(self, key: PrefixKey, policy: Policy) -> tuple[Namespace, Namespace]:
        """The namespace that sees what this key inserts, unless it is public; and the one of the key's tenant."""
        creator = self.get(key.tenant, key.salt)
        if not policy.everything_public:
            return creator, creator
        return (self.get("", key.salt) if key.salt else self.public), creator

    def tenant(self, name: str) -> Tenant | None:
        return self._tenants.get(name)

    @property
    def tenants(self) -> list[Tenant]:
        return list(self._tenants.values())
