"""Nodes of the prefix tree; namespaces (tenant, salt), held weakly. SafeKV (§VI-A) keeps the first tenant alone."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from weakref import WeakValueDictionary

from cloister.prefix.base import Policy, PrefixKey

_SLACK = 32


class EvictionQueue:
    """A removed node's entry stays in the heap until it is the first, or until such entries are the majority."""

    __slots__ = ("_heap", "_nodes")

    def __init__(self) -> None:
        # epoch of the last use, whether the node is a single turn, serial number
        self._heap: list[tuple[int, bool, int]] = []
        self._nodes: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def first_epoch(self) -> int:
        return self._heap[0][0]

    def push(self, node: "Node", serial: int) -> None:
        """Among nodes of one epoch, compressed ones come first, then the smallest serial number."""
        node.serial = serial
        self._nodes[serial] = node
        heappush(self._heap, (node.epoch, not node.compressed, serial))

    def pop(self) -> "tuple[int, Node]":
        epoch, node = self._heap[0][0], self._nodes[self._heap[0][2]]
        self.remove(node)
        return epoch, node

    def remove(self, node: "Node") -> None:
        if node.serial is None:
            return
        del self._nodes[node.serial]
        node.serial = None
        if len(self._heap) > 2 * len(self._nodes) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2] in self._nodes]
            heapify(self._heap)
        while self._heap and self._heap[0][2] not in self._nodes:
            heappop(self._heap)


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Tenant:
    """One tenant's record. All shared pages together have a record too, whose name is empty."""

    name: str
    pages: int = 0  # in the pool, seen only by this tenant
    last_request: int = 0  # epoch, whether or not the request found anything
    queue: EvictionQueue = field(default_factory=EvictionQueue)


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Namespace:
    tenant: Tenant


class Namespaces:
    def __init__(self) -> None:
        self.public = Namespace(Tenant(""))
        self._namespaces: WeakValueDictionary[tuple[str, str], Namespace] = WeakValueDictionary()
        self._tenants: WeakValueDictionary[str, Tenant] = WeakValueDictionary()

    def get(self, name: str, salt: str) -> Namespace:
        namespace = self._namespaces.get((name, salt))
        if namespace is None:
            tenant = self._tenants.get(name)
            if tenant is None:
                tenant = self._tenants[name] = Tenant(name)
            namespace = self._namespaces[name, salt] = Namespace(tenant)
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


@dataclass(slots=True, eq=False, repr=False)
class Node:
    namespace: Namespace
    tokens: bytes
    blocks: list[int]
    rights: list[Namespace]  # that keep the node if others are forgotten; oldest first
    parent: "Node | None" = None
    children: "dict[tuple[Namespace, bytes], Node]" = field(default_factory=dict)  # by namespace and first page
    epoch: int = 0  # of its last use
    compressed: bool = False  # several turns of one conversation (SafeKV §VI-B1)
    serial: int | None = None  # in the eviction queue of its tenant

    @property
    def pages(self) -> int:
        return len(self.blocks)
