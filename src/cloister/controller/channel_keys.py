"""The channel key that evidence shows (SHOWN_S, or half the messages that are remembered), and those before it, held
for HELD_S more: a key stolen from a running node opens only requests sealed to it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from cloister.channel.envelope import Envelope
from cloister.channel.ohttp.encapsulation import ExchangeKeys, Form, Header, decapsulate
from cloister.channel.sealing import DEFAULT_LIMIT, ChannelKey, RequestKeys, SeenMessages
from cloister.errors import ChannelKeyUnknown

log = logging.getLogger(__name__)
SHOWN_S = 3600.0
HELD_S = 600.0
MOST_HELD = 4  # a flood of messages uses up key after key, and each remembers its messages (60 MB at most)


@dataclass(frozen=True)
class ShownKey:
    """Held for `held_s`, unless a flood of messages uses it up."""

    public: bytes
    held_s: float


class _Held:
    def __init__(self, limit: int, now: float) -> None:
        self.key = ChannelKey.generate()
        self.seen, self.seen_exchanges = SeenMessages(limit), SeenMessages(limit)
        self.replaced_at = now + SHOWN_S  # for the key that is shown: at the latest


class ChannelKeys:
    """Each message is taken once. The owner calls `tend` every `due_s` seconds: keys expire without requests, too."""

    def __init__(self, limit: int = DEFAULT_LIMIT, clock: Callable[[], float] = monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._held = [_Held(limit, clock())]  # the last one is the newest, and is shown

    @property
    def shown(self) -> ShownKey:
        self.tend()
        newest = self._held[-1]
        return ShownKey(newest.key.public, newest.replaced_at + HELD_S - self._clock())

    @property
    def public(self) -> bytes:
        return self.shown.public

    @property
    def due_s(self) -> float:
        moments = [*(one.replaced_at + HELD_S for one in self._held[:-1]), self._held[-1].replaced_at]
        return max(0.0, min(moments) - self._clock())

    def accept(self, envelope: Envelope) -> RequestKeys:
        """ChannelKeyUnknown, MessageRepeated or ChannelBroken if it is not for us to open."""
        held = self._holding(envelope.key_id)
        keys = held.key.accept(envelope.enc)
        try:
            self._note(held, held.seen, envelope.enc)
        except BaseException:
            keys.erase()
            raise
        return keys

    def open_exchange(self, header: Header, form: Form) -> ExchangeKeys:
        """The keys of an oblivious exchange (RFC 9458), which is taken once, too. A sealed request may be in it."""
        held = self._holding(bytes((header.key_id,)))
        keys = held.key.decapsulate(lambda private: decapsulate(private, header, form))
        self._note(held, held.seen_exchanges, header.enc)
        return keys

    def tend(self) -> None:
        now = self._clock()
        if now >= self._held[-1].replaced_at:
            self.renew()
        self._held[:-1] = [one for one in self._held[:-1] if now < one.replaced_at + HELD_S]

    def renew(self) -> None:
        now = self._clock()
        self._held[-1].replaced_at = min(now, self._held[-1].replaced_at)
        made = _Held(self._limit, now)
        while any(made.key.key_id[0] == one.key.key_id[0] for one in self._held):  # OHTTP's ids have one byte
            made = _Held(self._limit, now)
        self._held = [*self._held, made][-MOST_HELD:]

    def drop(self) -> None:
        """Holds no other key: clients that verified this node have to verify it again."""
        self._held = [_Held(self._limit, self._clock())]

    def _holding(self, beginning: bytes) -> _Held:
        self.tend()
        for held in self._held:
            if held.key.key_id.startswith(beginning):
                return held
        raise ChannelKeyUnknown(
            "This node does not hold the key the request was sealed to.",
            hint="It restarted since, or replaced the key: verify it again and send again.",
        )

    def _note(self, held: _Held, seen: SeenMessages, enc: bytes) -> None:
        seen.add(enc)
        if held is self._held[-1] and seen.count >= max(1, self._limit // 2):
            log.info("The channel key has taken half of the messages it may; there is a new one.")
            self.renew()
