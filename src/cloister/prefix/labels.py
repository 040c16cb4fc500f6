"""Requests that wait for a detector's word on how much of their beginning is public (SafeKV §V-D). Knows no tree."""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakKeyDictionary

from cloister.prefix.base import PrefixKey

MOST_UNLABELLED = 4096
"""Requests that wait for their label; the oldest of more stay private."""


class _Unlabelled:
    """A request whose last label or whose last pages are still to come."""

    __slots__ = ("complete", "key", "labelled")

    def __init__(self, key: PrefixKey) -> None:
        self.key = key
        self.labelled = self.complete = False


class Labels:
    """By number of request, until nothing more will come of it. What was said of a key is known as long as the key."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, _Unlabelled] = OrderedDict()
        self._public: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()

    def expect(self, key: PrefixKey) -> None:
        """A label will come for this key, or none."""
        if key.request_id in self._waiting or key in self._public:
            return
        while len(self._waiting) >= MOST_UNLABELLED:
            self._waiting.popitem(last=False)
        self._waiting[key.request_id] = _Unlabelled(key)

    def say(self, request_id: int, public_tokens: int, *, final: bool) -> tuple[PrefixKey, int] | None:
        """Take a label; whose it is, and how many pages are public by now. None if nobody waits for it."""
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.labelled:
            return None
        key = waiting.key
        self._public[key] = max(self.public_pages(key), key.paging.pages(public_tokens))
        waiting.labelled = final
        self._settle(request_id)
        return key, self._public[key]

    def public_pages(self, key: PrefixKey) -> int:
        """What labels said of this key so far."""
        return self._public.get(key, 0)

    def complete(self, key: PrefixKey) -> None:
        """All pages of this key are there: nothing but its last label is awaited."""
        waiting = self._waiting.get(key.request_id)
        if waiting is not None and waiting.key is key:
            waiting.complete = True
            self._settle(key.request_id)

    def forget(self, tenant: str) -> None:
        for request_id in [one for one, waiting in self._waiting.items() if waiting.key.tenant == tenant]:
            del self._waiting[request_id]
        for key in [key for key in self._public if key.tenant == tenant]:
            del self._public[key]

    def _settle(self, request_id: int) -> None:
        waiting = self._waiting[request_id]
        if waiting.complete and waiting.labelled:
            del self._waiting[request_id]
