"""Caches of whole pages of words, for attackers to try: shared, or each tenant's own, or taken back after some hits."""

from __future__ import annotations

from cloister_bench.sharing.attack import Probe

PAGE = 16


class PagedCache:
    """`serves`: how often strangers find a prompt before it is its writer's alone; None: for ever."""

    def __init__(self, *, shared: bool, serves: int | None = None) -> None:
        self._shared = shared
        self._serves = serves
        self._writers: dict[tuple[str, ...], str] = {}
        self._own: set[tuple[str, tuple[str, ...]]] = set()
        self._hits = 0

    def ask(self, tenant: str, prompt: str) -> Probe:
        words = prompt.split()
        pages = [tuple(words[:end]) for end in range(PAGE, len(words), PAGE)]
        found = 0
        for page in pages:
            if (tenant, page) not in self._own and not self._lent(page, tenant):
                break
            found += 1
        if found and self._serves is not None and not self._mine(pages[0], tenant):
            self._hits += 1
            if self._hits > self._serves:
                self._shared, found = False, 0
        for page in pages:
            self._own.add((tenant, page))
            self._writers.setdefault(page, tenant)
        return Probe(0.5 - 0.01 * found, PAGE * found, len(words))

    def _lent(self, page: tuple[str, ...], tenant: str) -> bool:
        return self._shared and page in self._writers

    def _mine(self, page: tuple[str, ...], tenant: str) -> bool:
        return self._writers.get(page) == tenant


class Caller:
    def __init__(self, cache: PagedCache, name: str) -> None:
        self._cache, self._name = cache, name

    def ask(self, prompt: str) -> Probe:
        return self._cache.ask(self._name, prompt)
