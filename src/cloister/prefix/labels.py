from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from cloister.prefix.base import PrefixKey

MAX_UNLABELLED = 4096  # beyond this number the oldest stay private


@dataclass(slots=True)
class _Unlabelled:
    key: PrefixKey
    labelled: bool = False
    complete: bool = False


class Labels:
    """Requests that wait for a detector's label (SafeKV §V-D); a key's labels live as long as the key."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, _Unlabelled] = OrderedDict()
        self._public: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()
        self._registered: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()
        self._own: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()

    def expect(self, key: PrefixKey) -> None:
        if key.request_id in self._waiting or key in self._public:
            return
        while len(self._waiting) >= MAX_UNLABELLED:
            self._waiting.popitem(last=False)
        self._waiting[key.request_id] = _Unlabelled(key)

    def add(
        self, request_id: int, public_tokens: int, registered: int = 0, *, final: bool
    ) -> tuple[PrefixKey, int] | None:
        """Returns the key and how many pages are public by now; None if no request waits for it."""
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.labelled:
            return None
        key = waiting.key
        self._public[key] = max(self.public_pages(key), key.paging.pages(public_tokens))
        self._registered[key] = key.paging.pages(registered)
        waiting.labelled = final
        self._drop_if_done(request_id)
        return key, self._public[key]

    def public_pages(self, key: PrefixKey) -> int:
        return self._public.get(key, 0)

    def shown(self, key: PrefixKey, own: int) -> int:
        """Pages whose reuse its tenant may see: registered ones, and those that were its own at the first look-up."""
        return max(self._own.setdefault(key, own), self._registered.get(key, 0))

    def complete(self, key: PrefixKey) -> None:
        """All pages of this key are in the tree: only its last label is still to come."""
        waiting = self._waiting.get(key.request_id)
        if waiting is not None and waiting.key is key:
            waiting.complete = True
            self._drop_if_done(key.request_id)

    def forget(self, tenant: str) -> None:
        for request_id in [one for one, waiting in self._waiting.items() if waiting.key.tenant == tenant]:
            del self._waiting[request_id]
        for known in (self._public, self._registered, self._own):
            for key in [key for key in known if key.tenant == tenant]:
                del known[key]

    def _drop_if_done(self, request_id: int) -> None:
        waiting = self._waiting[request_id]
        if waiting.complete and waiting.labelled:
            del self._waiting[request_id]
