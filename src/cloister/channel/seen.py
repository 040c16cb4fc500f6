"""Which requests were received under a channel key: a message that somebody recorded and sends again is refused.

It never forgets while the key lives. Once full it refuses everything, as if the key were gone: the key's holder makes a
new one then (with a new SeenMessages), best as soon as `full` says so, and clients verify it and send again.
"""

from __future__ import annotations

from cloister.errors import ChannelKeyUnknown, MessageRepeated

DEFAULT_LIMIT = 1 << 18
_KEPT_BYTES = 16


class SeenMessages:
    """The encapsulated keys seen under one channel key."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._seen: set[bytes] = set()

    @property
    def full(self) -> bool:
        """Whether the next message will be refused whatever it is."""
        return len(self._seen) >= self._limit

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, enc: bytes) -> None:
        """Note it. MessageRepeated if it was there before; ChannelKeyUnknown if there is no room to note it."""
        kept = bytes(enc[:_KEPT_BYTES])
        if kept in self._seen:
            raise MessageRepeated(
                "This sealed message was received before.", hint="Seal the request anew; every message is taken once."
            )
        if self.full:
            raise ChannelKeyUnknown(
                "The channel key has taken as many messages as it may.", hint="Verify the node anew and send again."
            )
        self._seen.add(kept)
