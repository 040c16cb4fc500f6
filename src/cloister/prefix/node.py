"""A node of the prefix tree: the tokens of a run of whole pages, and the blocks that hold their keys and values.

Its namespace says which tenants see it. A node that several tenants see lists the namespaces with a right to it: their
own requests computed or found these pages. SafeKV (§VI-A: `creator_id`) keeps the first of them alone; then a node goes
with the tenant that brought it, although others still use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloister.prefix.namespaces import Namespace

if TYPE_CHECKING:
    from cloister.prefix.monitor import Watched


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """`resident` counts its first pages that are in the pool; a page is in the pool only if all pages before it are.
    A block below 0 is `~number` of a lower tier."""

    namespace: Namespace
    tokens: bytes
    blocks: list[int]
    resident: int
    parent: Node | None = None
    children: dict[tuple[Namespace, bytes], Node] = field(default_factory=dict)
    """By namespace and first page."""
    shared_rights: list[Namespace] | None = None
    """None: the right to this node is its namespace's alone."""
    epoch: int = 0
    """Of its last use."""
    compressed: bool = False
    """Whether it is several turns of one conversation (SafeKV §VI-B1)."""
    watched: Watched | float | None = None
    """A monitor's record of a public node; of a private one, until when it may not become public again."""
    serial: int | None = None
    """Its number in the eviction queue of its tenant."""

    def __repr__(self) -> str:
        """Without the tokens: a log may show a node."""
        return f"<Node of {self.pages} pages>"

    @property
    def pages(self) -> int:
        return len(self.blocks)

    @property
    def in_tree(self) -> bool:
        """Whether it is a node of the tree, other than the root."""
        return self.parent is not None

    @property
    def is_edge(self) -> bool:
        """Whether no node below it is in the pool: its last page is the next to be evicted from here."""
        return all(not child.resident for child in self.children.values())

    @property
    def rights(self) -> tuple[Namespace, ...]:
        """The namespaces that keep the node if it becomes private again, or if others are forgotten; oldest first."""
        return (self.namespace,) if self.shared_rights is None else tuple(self.shared_rights)

    def has_right(self, namespace: Namespace) -> bool:
        return namespace is self.namespace if self.shared_rights is None else namespace in self.shared_rights

    def add_right(self, namespace: Namespace) -> None:
        """Let another namespace keep this node too. The first call makes the list of rights."""
        if self.shared_rights is None:
            self.shared_rights = []
        if namespace not in self.shared_rights:
            self.shared_rights.append(namespace)

    def drop_right(self, namespace: Namespace) -> None:
        assert self.shared_rights is not None
        self.shared_rights.remove(namespace)
