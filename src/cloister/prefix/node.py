"""A node of the prefix tree: a run of whole pages and their blocks; its namespace says which tenants see it.
A shared node lists the namespaces with a right to it: their own requests computed or found these pages. SafeKV (§VI-A:
`creator_id`) keeps the first alone; then a node goes with the tenant that brought it, although others still use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloister.prefix.namespaces import Namespace

if TYPE_CHECKING:
    from cloister.prefix.monitor import Watched


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A page is in the pool (`resident`) only if all before it are. A block below 0 is `~number` of a lower tier."""

    namespace: Namespace
    tokens: bytes
    blocks: list[int]
    resident: int
    parent: Node | None = None
    children: dict[tuple[Namespace, bytes], Node] = field(default_factory=dict)  # by namespace and first page
    shared_rights: list[Namespace] | None = None  # None: the right to this node is its namespace's alone
    epoch: int = 0  # of its last use
    compressed: bool = False  # several turns of one conversation (SafeKV §VI-B1)
    # of a public node a record; of a private one, until when it may not become public again
    watched: Watched | float | None = None
    serial: int | None = None  # in the eviction queue of its tenant

    def __repr__(self) -> str:
        return f"<Node of {self.pages} pages>"

    @property
    def pages(self) -> int:
        return len(self.blocks)

    @property
    def in_tree(self) -> bool:
        return self.parent is not None

    @property
    def is_edge(self) -> bool:
        """No node below it is in the pool: its last page is the next to be evicted from here."""
        return all(not child.resident for child in self.children.values())

    @property
    def rights(self) -> tuple[Namespace, ...]:
        """The namespaces that keep the node if it becomes private again, or if others are forgotten; oldest first."""
        return (self.namespace,) if self.shared_rights is None else tuple(self.shared_rights)

    def has_right(self, namespace: Namespace) -> bool:
        return namespace is self.namespace if self.shared_rights is None else namespace in self.shared_rights

    def add_right(self, namespace: Namespace) -> None:
        """The first call makes the list of rights."""
        if self.shared_rights is None:
            self.shared_rights = []
        if namespace not in self.shared_rights:
            self.shared_rights.append(namespace)

    def drop_right(self, namespace: Namespace) -> None:
        assert self.shared_rights is not None
        self.shared_rights.remove(namespace)
