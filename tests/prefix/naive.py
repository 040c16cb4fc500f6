"""What a prefix cache should keep and show, one page at a time and without any cleverness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cloister.prefix.base import PrefixKey
from cloister.prefix.policy import POLICIES

PUBLIC = ("", "")
Who = tuple[str, str]


@dataclass(eq=False)
class Page:
    tokens: bytes
    owner: Who
    creator: Who
    block: int
    parent: Page | None
    children: list[Page] = field(default_factory=list)
    barred: bool = False

    def below(self) -> Iterator[Page]:
        for child in self.children:
            yield child
            yield from child.below()

    def leave(self) -> None:
        assert self.parent is not None
        self.parent.children.remove(self)


class NaiveCache:
    """The same rules as RadixCache, by brute force."""

    def __init__(self, page_bytes: int) -> None:
        self.root = Page(b"", PUBLIC, PUBLIC, -1, None)
        self.size = page_bytes
        self.labels: dict[int, int | None] = {}
        self.keys: dict[int, PrefixKey] = {}

    def cut(self, key: PrefixKey) -> list[bytes]:
        return [key.tokens[i : i + self.size] for i in range(0, len(key.tokens), self.size)]

    def whose(self, key: PrefixKey) -> tuple[Who, Who, bool]:
        policy, creator = POLICIES[key.policy], (key.tenant, key.salt)
        viewer = ("", key.salt) if policy.everything_public else creator
        return viewer, creator, policy.sees_public and not key.salt

    def search(self, page: Page, rest: list[bytes], viewer: Who, public: bool) -> list[Page]:
        """The longest way down; a public page before an own one among equally long ways."""
        best: list[Page] = []
        seen = [PUBLIC, viewer] if public else [viewer]
        for owner in dict.fromkeys(seen):
            for child in page.children:
                if rest and child.tokens == rest[0] and child.owner == owner:
                    way = [child, *self.search(child, rest[1:], viewer, public and owner == PUBLIC)]
                    best = way if len(way) > len(best) else best
        return best

    def lookup(self, key: PrefixKey, most: int) -> list[Page]:
        viewer, _, public = self.whose(key)
        if POLICIES[key.policy].labelled_public and not key.salt and key.request_id not in self.keys:
            self.keys[key.request_id], self.labels[key.request_id] = key, None
        return self.search(self.root, self.cut(key)[:most], viewer, public)

    def insert(self, key: PrefixKey, blocks: list[int]) -> None:
        viewer, creator, sees = self.whose(key)
        policy = POLICIES[key.policy]
        public = 0 if key.salt else key.paging.public_pages if policy.marked_public else 0
        if viewer == PUBLIC:
            public = len(blocks)
        if self.keys.get(key.request_id) is key:
            public = self.labels[key.request_id] or 0
        self.publish(viewer, self.cut(key)[: min(public, len(blocks))])
        rest = self.cut(key)[: len(blocks)]
        way = self.search(self.root, rest, viewer, sees)
        page = way[-1] if way else self.root
        held = {each.block for each in self.root.below()}
        for at in range(len(way), len(blocks)):
            if blocks[at] in held:
                return
            shared = at < public and page.owner == PUBLIC
            new = Page(rest[at], PUBLIC if shared else viewer, creator, blocks[at], page)
            page.children.append(new)
            page = new

    def label(self, request_id: int, pages: int) -> None:
        if request_id in self.keys and self.labels[request_id] is None:
            key = self.keys[request_id]
            pages = self.labels[request_id] = min(pages, len(self.cut(key)))
            self.publish(self.whose(key)[0], self.cut(key)[:pages])

    def publish(self, viewer: Who, tokens: list[bytes]) -> None:
        for page in self.search(self.root, tokens, viewer, public=True):
            if page.owner != PUBLIC:
                assert page.parent is not None
                twins = [other for other in page.parent.children if other.tokens == page.tokens]
                if page.barred or page.parent.owner != PUBLIC or any(other.owner == PUBLIC for other in twins):
                    return
                page.owner = PUBLIC

    def demote(self, page: Page, *, barred: bool = False) -> None:
        assert page.parent is not None
        if any(o is not page and o.owner == page.creator and o.tokens == page.tokens for o in page.parent.children):
            page.leave()
            return
        page.owner, page.barred = page.creator, barred
        for child in list(page.children):
            if child.owner == PUBLIC and child.creator == page.owner:
                self.demote(child, barred=barred)
            elif child.owner != page.owner:
                child.leave()

    def forget(self, tenant: str) -> None:
        for request_id in [one for one, key in self.keys.items() if key.tenant == tenant]:
            del self.keys[request_id], self.labels[request_id]
        for page in list(self.root.below()):
            if page.creator[0] == tenant and page in page.parent.children:  # type: ignore[union-attr]
                page.leave()
