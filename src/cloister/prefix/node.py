"""The nodes of the tree, and whose they are.

A node is a run of pages: the tokens of whole blocks, and where their keys and values are. Who may see it is its owner;
who brought it stays its creator, so that a mark can be taken back (SafeKV §VI-A: `private_tag`, `creator_id`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from cloister.prefix.monitor import Watched

TAG_BYTES = 6
USER_BITS = 62


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
        self.heap: list[Node] = []


class Owner:
    """Whoever sees a private node: a tenant under one salt. `tag` begins the keys of its nodes among their siblings."""

    __slots__ = ("__weakref__", "account", "bit", "tag")

    def __init__(self, number: int, account: Account) -> None:
        self.account = account
        self.tag = number.to_bytes(TAG_BYTES, "little")
        self.bit = 1 << number % USER_BITS


class Link(NamedTuple):
    """A node that path compression made a part of its `pri_root`: enough to make it a node again (SafeKV §VI-B1)."""

    pages: int
    epoch: int
    hits: int
    users: int


class Node:
    """A run of pages under one owner. `run` is the owner's tag and the tokens, so that a run of one page is its own key
    among its siblings. `blocks` has a block for each page; one below 0 is `~number` of a lower tier.

    `links` is None, or says of which nodes a compressed private chain is made; the node is their `pri_root`.
    """

    __slots__ = (
        *("blocks", "children", "creator", "epoch", "hits"),
        *("links", "owner", "parent", "queued", "rank", "resident", "run", "users", "watched"),
    )

    def __init__(self, parent: Node | None, owner: Owner, creator: Owner, tokens: bytes, blocks: list[int]) -> None:
        self.parent = parent
        self.owner = owner
        self.creator = creator
        self.run = owner.tag + tokens
        self.blocks = blocks
        self.resident = len(blocks)
        """How many of its first pages are in the pool; all before a page that is are, too."""
        self.children: dict[bytes, Node] | None = None
        self.links: list[Link] | None = None
        self.queued: Account | None = None
        """Whose heap it waits in to be evicted, in the order of `rank`."""
        self.rank = 0
        self.epoch = 0
        self.hits = 0
        self.users = 0
        self.watched: Watched | float | None = None
        """What a monitor knows of a public run; of a private one, until when it may not become public again."""

    def __repr__(self) -> str:
        """Without the tokens: a log may show a node."""
        return f"<Node of {len(self.blocks)} pages>"

    def __lt__(self, other: Node) -> bool:
        """Whether it is evicted before another. Heaps of nodes take less than heaps of pairs."""
        return self.rank < other.rank

    @property
    def tokens(self) -> bytes:
        return self.run[TAG_BYTES:]

    @property
    def is_compressed(self) -> bool:
        return self.links is not None

    @property
    def user_count(self) -> int:
        """Tenants that found it, exact up to as many as a node has bits for."""
        return self.users.bit_count()

    @property
    def is_edge(self) -> bool:
        """Whether nothing below it is in the pool: what is evicted next from here is this node's last page."""
        return not self.children or not any(child.resident for child in self.children.values())

    def touch(self, user: Owner, epoch: int) -> None:
        self.epoch = epoch
        self.hits += 1
        self.users = self.users | user.bit if self.users else user.bit
