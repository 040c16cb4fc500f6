from collections import OrderedDict
from weakref import WeakKeyDictionary

from cloister.prefix.base import PrefixKey

MAX_UNLABELLED = 4096  # beyond this number the oldest stay private


class Labels:
    """Requests that wait for a detector's label (SafeKV §V-D); a key's labels live as long as the key."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, PrefixKey] = OrderedDict()
        self._public: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()
        self._registered: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()
        self._own: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()

    def expect(self, key: PrefixKey) -> None:
        if key.request_id in self._waiting or key in self._public:
            return
        while len(self._waiting) >= MAX_UNLABELLED:
            self._waiting.popitem(last=False)
        self._waiting[key.request_id] = key

    def add(self, request_id: int, public_tokens: int, registered: int = 0) -> tuple[PrefixKey, int] | None:
        """Returns the key and how many pages are public by now; None if no request waits for it."""
        if (key := self._waiting.pop(request_id, None)) is None:
            return None
        self._public[key] = key.paging.pages(public_tokens)
        self._registered[key] = key.paging.pages(registered)
        return key, self._public[key]

    def public_pages(self, key: PrefixKey) -> int:
        return self._public.get(key, 0)

    def shown(self, key: PrefixKey, own: int) -> int:
        """Pages whose reuse its tenant may see: registered ones, and those that were its own at the first look-up."""
        return max(self._own.setdefault(key, own), self._registered.get(key, 0))

    def forget(self, tenant: str) -> None:
        for request_id in [one for one, key in self._waiting.items() if key.tenant == tenant]:
            del self._waiting[request_id]
        for known in (self._public, self._registered, self._own):
            for key in [key for key in known if key.tenant == tenant]:
                del known[key]
