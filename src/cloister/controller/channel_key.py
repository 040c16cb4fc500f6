"""The key that users seal requests to: made at start, bound into the evidence, never written anywhere.

Each message is taken once. A key that has taken as many as can be remembered is replaced; clients then verify the node
anew. Who sends what, and what it says, is unknown here.
"""

from __future__ import annotations

import logging

from cloister.channel.envelope import Envelope
from cloister.channel.sealing import DEFAULT_LIMIT, ChannelKey, RequestKeys, SeenMessages
from cloister.errors import ChannelKeyUnknown

log = logging.getLogger(__name__)


class ChannelKeys:
    """The present channel key and the messages it has taken."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._renew()

    @property
    def public(self) -> bytes:
        """What evidence binds and clients seal to."""
        return self._key.public

    def accept(self, envelope: Envelope) -> RequestKeys:
        """The keys of a request; ChannelKeyUnknown, MessageRepeated or ChannelBroken if it is not for us to open."""
        if envelope.key_id != self._key.key_id:
            raise ChannelKeyUnknown(
                "This node does not hold the key the request was sealed to.",
                hint="It started again since: verify it anew and send again.",
            )
        keys = self._key.accept(envelope.enc)
        try:
            self._seen.add(envelope.enc)
        except BaseException:
            keys.erase()
            raise
        if self._seen.full:
            log.info("The channel key has taken as many messages as it may; there is a new one.")
            self._renew()
        return keys

    def _renew(self) -> None:
        self._key, self._seen = ChannelKey.generate(), SeenMessages(self._limit)
