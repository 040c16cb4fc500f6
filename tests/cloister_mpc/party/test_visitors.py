"""A party's control port, the party in this very process: strangers do not keep out who has a certificate."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from cloister.link.network.address import Address
from cloister.link.network.door import MOST_UNPROVED, Door
from cloister.messages.frames import encode_frame
from cloister_mpc.certificates import Keys, client_tls
from cloister_mpc.config import PartiesConfig
from cloister_mpc.connection import Connection
from cloister_mpc.local_parties import KEYS, make_local
from cloister_mpc.messages import VERSION, Hello, ToDealer, Welcome
from cloister_mpc.party import party
from tests.link.strangers import closes, strangers


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PartiesConfig:
    return make_local(tmp_path_factory.mktemp("visited"))


@asynccontextmanager
async def running(config: PartiesConfig) -> AsyncIterator[Address]:
    """Party 1, which leads nobody; where it listens."""
    stop = asyncio.Event()
    serving = asyncio.create_task(party.Party(config, 1).serve(stop))
    try:
        async with asyncio.timeout(90):
            yield Address.parse(config.party[1].control)
    finally:
        stop.set()
        await asyncio.wait_for(serving, 60)


async def visitor(config: PartiesConfig) -> Connection:
    """A client with its certificate, as soon as the party listens."""
    tls = client_tls(config.path(config.authority), Keys(config.path(KEYS)).client())
    while True:
        try:
            return await Connection.open(Address.parse(config.party[1].control), tls, ToDealer, 30)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_silent_strangers_are_few_and_keep_no_client_out(config: PartiesConfig) -> None:
    async with running(config) as address:
        first = await visitor(config)
        before, there = descriptors(), strangers(address)
        came = await asyncio.to_thread(there.__enter__)
        try:
            assert descriptors() <= before + len(came) + MOST_UNPROVED, "all of them are kept"
            line = await visitor(config)
            for one in (first, line):
                await one.send(Hello(VERSION))
                assert isinstance(await one.receive(30), Welcome)
                one.close()
        finally:
            await asyncio.to_thread(there.__exit__, None, None, None)


async def test_who_does_not_prove_itself_in_time_is_dropped(
    config: PartiesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(party, "Door", partial(Door, patience_s=0.2))
    async with running(config) as address:
        (await visitor(config)).close()
        there = strangers(address, 3)
        came = await asyncio.to_thread(there.__enter__)
        try:
            for one in came:
                assert await asyncio.to_thread(closes, one)
        finally:
            there.__exit__(None, None, None)


async def test_a_client_that_says_nothing_is_dropped(config: PartiesConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party, "HELLO_S", 0.2)
    async with running(config):
        line = await visitor(config)
        assert await line.receive(60) is None
        line.close()


async def test_a_client_that_says_its_first_message_byte_by_byte_is_dropped(
    config: PartiesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(party, "HELLO_S", 0.2)
    async with running(config):
        line = await visitor(config)
        waiting = asyncio.create_task(line.receive(60))
        for byte in encode_frame((Hello(VERSION),)) * 2:
            await asyncio.wait((waiting,), timeout=0.1)
            if waiting.done():
                break
            line._writer.write(bytes([byte]))
        assert await waiting is None
        line.close()
