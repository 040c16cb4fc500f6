"""What a prefix cache should keep and show, one page at a time and without any cleverness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cloister.prefix.base import POLICIES, PrefixKey

PUBLIC = ("", "")
Who = tuple[str, str]


@dataclass(eq=False)
class Page:
    """`holders` have a right to it: their own requests had these tokens here. A private page has one, its owner."""

    tokens: bytes
    owner: Who
    holders: list[Who]
    block: int
    parent: Page | None
    children: list[Page] = field(default_factory=list)

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
        self.root = Page(b"", PUBLIC, [PUBLIC], -1, None)
        self.size = page_bytes
        self.waiting: dict[int, PrefixKey] = {}
        self.public: dict[PrefixKey, int] = {}

    def cut(self, key: PrefixKey) -> list[bytes]:
        return [key.tokens[i : i + self.size] for i in range(0, len(key.tokens), self.size)]

    def whose(self, key: PrefixKey) -> tuple[Who, Who]:
        creator = (key.tenant, key.salt)
        return (("", key.salt) if POLICIES[key.policy].everything_public else creator), creator

    def span(self, key: PrefixKey) -> int:
        """How many of a key's first pages are public in its own prompt: so far it may touch what others published."""
        if key.salt:
            return 0
        return len(self.cut(key)) if POLICIES[key.policy].everything_public else self.public.get(key, 0)

    def search(self, page: Page, rest: list[bytes], viewer: Who, span: int) -> list[Page]:
        """The longest way down; a public page before an own one among equally long ways."""
        best: list[Page] = []
        seen = [PUBLIC] * (span > 0) + [viewer] * (viewer != PUBLIC)
        for owner in seen:
            for child in page.children:
                if rest and child.tokens == rest[0] and child.owner == owner:
                    way = [child, *self.search(child, rest[1:], viewer, span - 1 if owner == PUBLIC else 0)]
                    best = way if len(way) > len(best) else best
        return best

    def expect(self, key: PrefixKey) -> None:
        if POLICIES[key.policy].labelled_public and not key.salt and key not in self.public:
            self.waiting.setdefault(key.request_id, key)

    def lookup(self, key: PrefixKey, most: int) -> list[Page]:
        """What it may find. Whoever is lent it calls `claim`."""
        self.expect(key)
        return self.search(self.root, self.cut(key)[:most], self.whose(key)[0], self.span(key))

    def claim(self, key: PrefixKey, way: list[Page]) -> None:
        creator = self.whose(key)[1]
        for page in way:
            if creator not in page.holders:
                page.holders.append(creator)

    def insert(self, key: PrefixKey, blocks: list[int]) -> None:
        viewer, creator = self.whose(key)
        public = self.span(key)
        if viewer != PUBLIC:
            self.publish(viewer, self.cut(key)[: min(public, len(blocks))])
        rest = self.cut(key)[: len(blocks)]
        way = self.search(self.root, rest, viewer, public)
        self.claim(key, way)
        page = way[-1] if way else self.root
        held = {each.block for each in self.root.below()}
        for at in range(len(way), len(blocks)):
            if blocks[at] in held:
                return
            shared = at < public and page.owner == PUBLIC
            new = Page(rest[at], PUBLIC if shared else viewer, [creator], blocks[at], page)
            page.children.append(new)
            page = new

    def label(self, request_id: int, pages: int) -> None:
        key = self.waiting.pop(request_id, None)
        if key is not None:
            pages = self.public[key] = min(pages, len(self.cut(key)))
            self.publish(self.whose(key)[0], self.cut(key)[:pages])

    def publish(self, viewer: Who, tokens: list[bytes]) -> None:
        for page in self.search(self.root, tokens, viewer, len(tokens)):
            if page.owner != PUBLIC:
                assert page.parent is not None
                twins = [other for other in page.parent.children if other.tokens == page.tokens]
                if page.parent.owner != PUBLIC or any(other.owner == PUBLIC for other in twins):
                    return
                page.owner = PUBLIC

    def forget(self, tenant: str) -> None:
        self.waiting = {one: key for one, key in self.waiting.items() if key.tenant != tenant}
        self.public = {key: pages for key, pages in self.public.items() if key.tenant != tenant}
        for page in list(self.root.below()):
            page.holders = [holder for holder in page.holders if holder[0] != tenant]
            if not page.holders and page in page.parent.children:  # type: ignore[union-attr]
                page.leave()
