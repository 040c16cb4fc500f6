"""A wallet is filled before it is empty, at moments that no request sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.access.wallet import Wallet
from cloister.client.tokens import BATCH_TOKENS, REFILL_AT, REFILL_WITHIN_S, TokenSource
from cloister.errors import CloisterError, SetupError
from tests.access.adversary import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def source(world: World, later: Callable[[float, Callable[[], None]], None] | None = None) -> TokenSource:
    wallet = world.folder / "wallet.json"
    return TokenSource(world.cloud, "http://issuer.example", "alice", wallet, later or world.clock.later)


def test_the_first_batch_comes_when_a_client_begins(world: World) -> None:
    assert source(world).begin() == BATCH_TOKENS and len(world.granted) == 1
    assert source(world).begin() == BATCH_TOKENS and len(world.granted) == 1


def test_it_is_refilled_once_ahead_and_later(world: World) -> None:
    tokens = source(world)
    tokens.begin()
    for _ in range(BATCH_TOKENS - REFILL_AT + 5):
        tokens.take()
    assert len(world.granted) == 1 == len(world.clock.due)
    world.clock.move(world.clock.now + REFILL_WITHIN_S)
    assert len(world.granted) == 2 and tokens.left() == REFILL_AT - 5 + BATCH_TOKENS
    tokens.take()
    assert not world.clock.due


def test_the_moments_of_refills_are_spread(world: World) -> None:
    waits: list[float] = []
    for _ in range(40):
        tokens = source(world, lambda seconds, work: waits.append(seconds))
        Wallet(world.folder / "wallet.json")._write([])
        tokens.fetch(2)
        tokens.take()
    assert len(waits) == 40 and max(waits) - min(waits) > REFILL_WITHIN_S / 3
    assert all(0 <= each < REFILL_WITHIN_S for each in waits)


def test_a_refill_that_fails_is_tried_again_and_an_empty_wallet_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = source(world)
    tokens.fetch(2)
    monkeypatch.setattr(world.issuer, "_per_day", 2)
    for _ in range(2):
        tokens.take()
        world.clock.move(world.clock.now + REFILL_WITHIN_S)
    with pytest.raises(CloisterError, match="tokens"):
        tokens.take()
    monkeypatch.setattr(world.issuer, "_per_day", 1000)
    tokens.take()
    assert len(world.granted) >= 4


def test_a_client_begins_with_what_is_left_where_the_issuer_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = source(world)
    tokens.fetch(3)
    tokens._api_key = None
    assert tokens.begin() == 3
    for _ in range(3):
        tokens.take()
    with pytest.raises(SetupError, match="API key"):
        tokens.begin()
