"""Channel keys go on a schedule, and before a flood uses them up; what is under way meanwhile is served."""

from __future__ import annotations

import pytest

from cloister.channel.envelope import Envelope
from cloister.channel.ohttp.encapsulation import Form, Header, encapsulate
from cloister.channel.ohttp.keys import KeyConfiguration
from cloister.controller.channel_keys import HELD_S, MOST_HELD, SHOWN_S, ChannelKeys
from cloister.errors import ChannelKeyUnknown, MessageRepeated
from tests.controller.test_sealed_requests import sealed_to


class Keys(ChannelKeys):
    """With a clock of our own."""

    def __init__(self, limit: int = 1000) -> None:
        self.now = 1000.0
        super().__init__(limit, lambda: self.now)

    def take(self, public: bytes) -> None:
        self.accept(Envelope.decode(sealed_to(public)[0]))


def test_a_key_goes_on_a_schedule_and_is_held_for_those_who_verified_just_before() -> None:
    keys = Keys()
    first = keys.shown
    assert first.held_s == SHOWN_S + HELD_S and keys.due_s == SHOWN_S
    keys.now += SHOWN_S - 1
    late = keys.shown
    assert late.public == first.public and late.held_s == HELD_S + 1, "who verifies late is told so"
    keys.now += 2
    assert keys.public != first.public
    keys.take(first.public)
    keys.take(keys.public)
    assert keys.due_s == HELD_S - 1
    keys.now += HELD_S
    with pytest.raises(ChannelKeyUnknown):
        keys.take(first.public)
    keys.take(keys.public)


def test_a_controller_that_starts_again_has_another_key() -> None:
    assert Keys().public != Keys().public


def test_a_key_is_forgotten_although_nobody_asks() -> None:
    keys = Keys()
    before = keys._held[0].key
    keys.now += keys.due_s
    keys.tend()
    assert before in [one.key for one in keys._held]
    keys.now += keys.due_s
    keys.tend()
    assert before not in [one.key for one in keys._held] and len(keys._held) == 1


def test_a_key_that_nobody_tended_for_long_is_not_taken_once_more() -> None:
    keys = Keys()
    first = keys.public
    keys.now += SHOWN_S + HELD_S  # the machine slept
    with pytest.raises(ChannelKeyUnknown):
        keys.take(first)


def test_when_all_are_dropped_everybody_verifies_anew() -> None:
    keys = Keys()
    first = keys.public
    keys.renew()
    second = keys.public
    keys.drop()
    for gone in (first, second):
        with pytest.raises(ChannelKeyUnknown):
            keys.take(gone)
    keys.take(keys.public)


def test_a_flood_replaces_a_key_long_before_it_is_used_up() -> None:
    keys = Keys(limit=8)
    first = keys.public
    for _ in range(4):
        keys.take(first)
    second = keys.public
    assert second != first
    for _ in range(4):
        keys.take(first)  # those who verified before the flood
    with pytest.raises(ChannelKeyUnknown, match="as many messages as it may"):
        keys.take(first)
    keys.take(second)


def test_however_long_a_flood_lasts_only_so_many_keys_are_held() -> None:
    keys = Keys(limit=2)
    shown = []
    for _ in range(2 * MOST_HELD):
        shown.append(keys.public)
        keys.take(shown[-1])
    assert len(set(shown)) == len(shown) and len(keys._held) == MOST_HELD
    keys.take(shown[-1])
    with pytest.raises(ChannelKeyUnknown):
        keys.take(shown[0])


def test_a_message_is_taken_once_also_by_a_key_that_was_replaced() -> None:
    keys = Keys()
    envelope = Envelope.decode(sealed_to(keys.public)[0])
    keys.accept(envelope)
    keys.renew()
    with pytest.raises(MessageRepeated):
        keys.accept(envelope)


def exchange_with(public: bytes) -> Header:
    return encapsulate(KeyConfiguration.of(public), Form.CHUNKED)[0]


def test_an_oblivious_exchange_is_taken_once_and_apart_from_sealed_messages() -> None:
    keys = Keys()
    header, mine = encapsulate(KeyConfiguration.of(keys.public), Form.CHUNKED)
    opened = keys.open_exchange(header, Form.CHUNKED)
    assert (opened.request_key, opened.response_secret) == (mine.request_key, mine.response_secret)
    with pytest.raises(MessageRepeated):
        keys.open_exchange(header, Form.CHUNKED)
    with pytest.raises(MessageRepeated):
        keys.open_exchange(header, Form.WHOLE)
    keys.take(keys.public)


def test_an_exchange_opens_as_long_as_the_key_is_held() -> None:
    keys = Keys()
    before = keys.public
    keys.now += SHOWN_S + 1
    keys.open_exchange(exchange_with(before), Form.CHUNKED)
    keys.now += HELD_S
    with pytest.raises(ChannelKeyUnknown):
        keys.open_exchange(exchange_with(before), Form.CHUNKED)
    keys.drop()
    keys.open_exchange(exchange_with(keys.public), Form.CHUNKED)


def test_exchanges_use_a_key_up_as_messages_do() -> None:
    keys = Keys(limit=4)
    before = keys.public
    for _ in range(2):
        keys.open_exchange(exchange_with(before), Form.CHUNKED)
    assert keys.public != before


def test_keys_that_are_held_together_have_different_ids() -> None:
    for _ in range(40):
        keys = Keys()
        for _ in range(6):
            keys.renew()
        assert len({one.key.key_id[0] for one in keys._held}) == MOST_HELD
