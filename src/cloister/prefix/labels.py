"""Requests that wait for a detector's word on how much of their beginning is public (SafeKV §V-D). Knows no tree."""

from __future__ import annotations

from collections import OrderedDict

from cloister.prefix.base import PrefixKey

MOST_UNLABELLED = 4096
"""Requests that wait for their label; the oldest of more stay private."""


class _Unlabelled:
    """A request whose last label or whose last pages are still to come; `public_pages` as far as labels say."""

    __slots__ = ("complete", "key", "labelled", "public_pages")

    def __init__(self, key: PrefixKey) -> None:
        self.key = key
        self.public_pages = 0
        self.labelled = self.complete = False


class Labels:
    """By number of request, until nothing more will come of it."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, _Unlabelled] = OrderedDict()

    def expect(self, key: PrefixKey) -> None:
        """A label will come for this key, or none."""
        if key.request_id in self._waiting:
            return
        while len(self._waiting) >= MOST_UNLABELLED:
            self._waiting.popitem(last=False)
        self._waiting[key.request_id] = _Unlabelled(key)

    def say(self, request_id: int, public_tokens: int, *, final: bool) -> tuple[PrefixKey, int] | None:
        """Take a label; whose it is, and how many pages are public by now. None if nobody waits for it."""
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.labelled:
            return None
        waiting.public_pages = max(waiting.public_pages, waiting.key.paging.pages(public_tokens))
        waiting.labelled = final
        self._settle(request_id)
        return waiting.key, waiting.public_pages

    def public_pages(self, key: PrefixKey, *, complete: bool) -> int:
        """What labels said of this key so far; whether all of its pages are there now."""
        waiting = self._waiting.get(key.request_id)
        if waiting is None or waiting.key is not key:
            return 0
        waiting.complete = complete
        self._settle(key.request_id)
        return waiting.public_pages

    def forget(self, tenant: str) -> None:
        for request_id in [one for one, waiting in self._waiting.items() if waiting.key.tenant == tenant]:
            del self._waiting[request_id]

    def _settle(self, request_id: int) -> None:
        waiting = self._waiting[request_id]
        if waiting.complete and waiting.labelled:
            del self._waiting[request_id]
