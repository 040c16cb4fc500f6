"""Relay, nodes and issuer together, knowing the code, link two requests of one user no better than by guessing; with
one measure switched off they do. What is simulated is said in `adversary`; what the users mean is the same for all."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cloister.client import cloud_transport
from cloister.client import message as messages
from cloister.client import tokens as tokens_module
from tests.access.adversary import World, advantage

REQUESTS = 16
Off = Callable[[World, pytest.MonkeyPatch], None]


async def measured(folder: Path, patch: pytest.MonkeyPatch, off: Off | None = None, requests: int = REQUESTS) -> float:
    world = World(folder, patch)
    if off:
        off(world, patch)
    return advantage(await world.live(requests, random.Random(38)))


async def test_with_all_measures_the_adversary_guesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.42 < await measured(tmp_path, monkeypatch) < 0.58


def keys_for_tokens(world: World, patch: pytest.MonkeyPatch) -> None:
    world.with_tokens = False


def tokens_at_the_moment_of_use(world: World, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tokens_module, "BATCH_TOKENS", 1)
    patch.setattr(tokens_module, "REFILL_AT", -1)
    patch.setattr(tokens_module.TokenSource.fetch, "__defaults__", (1,))


def own_key_configurations(world: World, patch: pytest.MonkeyPatch) -> None:
    world.own_keys = True


def headers_as_they_came(world: World, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cloud_transport, "uniform", lambda headers, body: ([*headers], cloud_uniform(headers, body)[1]))
    patch.setattr(messages, "kept_headers", lambda headers: tuple(messages.end_to_end(headers)))


def bodies_as_they_came(world: World, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cloud_transport, "uniform", lambda headers, body: (cloud_uniform(headers, body)[0], body))


cloud_uniform = cloud_transport.uniform


def no_relay(world: World, patch: pytest.MonkeyPatch) -> None:
    """The node sees where a connection comes from."""
    world.relayed = False


def no_beat(world: World, patch: pytest.MonkeyPatch) -> None:
    world.way = replace(world.way, waits_s=0.0)


@pytest.mark.parametrize(
    "off",
    [
        no_relay,
        no_beat,
        keys_for_tokens,
        tokens_at_the_moment_of_use,
        own_key_configurations,
        headers_as_they_came,
        bodies_as_they_came,
    ],
)
async def test_with_one_measure_switched_off_it_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: Off) -> None:
    assert await measured(tmp_path, monkeypatch, off, 8) > 0.6
