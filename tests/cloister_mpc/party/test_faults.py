"""A party that dies, lags or sends garbage ends generations with PartyLost, and new ones work once it is back."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from cloister.errors import PartyLost
from cloister.link.network.address import Address
from cloister.messages.frames import encode_frame
from cloister_mpc.certificates import Role, client_tls
from cloister_mpc.messages import VERSION, PartyHello

pytest.importorskip("spu", reason="SPU is not installed: make mpc")

from tests.cloister_mpc.local import PROMPT, stopped, tokens
from tests.link.strangers import closes

if TYPE_CHECKING:
    from cloister_mpc.client.passes import TokenPasses
    from tests.cloister_mpc.local import LocalParties


@pytest.fixture(scope="module")
def expected(local: LocalParties) -> Iterator[list[int]]:
    """What the parties answer when nothing is broken; in the end, once more."""

    async def answer() -> list[int]:
        passes = await local.opened()
        try:
            return await tokens(passes, 2)
        finally:
            await passes.close()
            await local.model.close()

    before = asyncio.run(answer())
    yield before
    assert asyncio.run(answer()) == before


class Running:
    """A generation in the middle of a step, and of another when that is over."""

    def __init__(self, passes: TokenPasses) -> None:
        self._passes = passes
        self._progress = asyncio.Event()
        passes._layer_done = lambda _: self._progress.set()
        self._steps = asyncio.create_task(self._step())

    async def _step(self) -> None:
        at = 0
        while True:
            await self._passes.step(at, (7,), None)
            at = min(at + 1, 6)

    async def goes_on(self) -> None:
        """Until a layer has been computed that was not when this was asked."""
        self._progress.clear()
        waiting = asyncio.create_task(self._progress.wait())
        async with asyncio.timeout(60):
            await asyncio.wait((waiting, self._steps), return_when=asyncio.FIRST_COMPLETED)
        assert not self._steps.done(), self._steps.exception()

    async def ends(self) -> None:
        """Until a step fails, which raises."""
        await asyncio.wait_for(self._steps, 60)

    async def close(self) -> None:
        self._steps.cancel()
        await self._passes.close()


async def running(local: LocalParties) -> Running:
    passes = await local.opened()
    await passes.prefill(PROMPT, None)
    steps = Running(passes)
    await steps.goes_on()
    return steps


async def recovered(local: LocalParties, expected: list[int]) -> None:
    passes = await local.opened()
    assert await tokens(passes, 2) == expected
    await passes.close()
    await local.model.close()


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.release)], ids=["leader", "follower"])
async def test_a_killed_party_ends_the_generation_and_is_back(
    local: LocalParties, expected: list[int], rank: int
) -> None:
    steps = await running(local)
    before = local.child(1, "engine").pid
    os.kill(local.party(rank).pid, signal.SIGKILL)
    with pytest.raises(PartyLost):
        await steps.ends()
    await recovered(local, expected)
    assert local.child(1, "engine").pid != before, "an engine of a broken epoch lives on"


@pytest.mark.release
@pytest.mark.parametrize("child", ["engine", "tunnel"])
async def test_an_engine_or_tunnel_killed_ends_the_generation_at_all(
    local: LocalParties, expected: list[int], child: str
) -> None:
    steps = await running(local)
    before = local.child(0, "engine").pid
    os.kill(local.child(1, child).pid, signal.SIGKILL)
    with pytest.raises(PartyLost):
        await steps.ends()
    await recovered(local, expected)
    assert local.child(0, "engine").pid != before, "an engine of a broken epoch lives on"


async def test_strangers_garbage_disturbs_nobody(local: LocalParties, expected: list[int]) -> None:
    """On both ports of every party, while a step is computed: it goes on, and the epoch too."""
    steps = await running(local)
    before = local.child(0, "engine").pid
    for place in local.config.party:
        for address in (place.control, place.link):
            for garbage in (b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" + os.urandom(512)):
                with suppress(OSError), Address.parse(address).connect(5) as stranger:
                    stranger.sendall(garbage)
    await steps.goes_on()
    await steps.close()
    assert local.child(0, "engine").pid == before
    await recovered(local, expected)


async def test_garbage_under_a_clients_certificate_ends_it_alone(local: LocalParties, expected: list[int]) -> None:
    steps = await running(local)
    context = client_tls(local.config.path(local.config.authority), local.keys.client())
    for place in local.config.party:
        with context.wrap_socket(Address.parse(place.control).connect(5)) as line:
            line.sendall(os.urandom(3) + b"\x7f" + os.urandom(100))
            assert closes(line)
    await steps.goes_on()
    await steps.close()
    await recovered(local, expected)


async def test_a_silent_party_is_noticed_and_garbage_from_a_party_ends_the_epoch(
    local: LocalParties, expected: list[int]
) -> None:
    """Party 2 is held while we speak to the leader under its certificate: first well, then not."""
    steps = await running(local)
    context = client_tls(local.config.path(local.config.authority), local.keys.of(Role("party", "2")))
    with stopped(local.child(2, "engine")), stopped(local.party(2)):
        with pytest.raises(PartyLost, match=r"fell silent|was lost|did not answer"):
            await steps.ends()
        line = await asyncio.to_thread(_as_party_two, local, context)
        line.sendall(b"\xff" * 64)
        assert closes(line)
        line.close()
    assert "party_lost" not in local.log(0) and "protocol_error" in local.log(0)
    await recovered(local, expected)


def _as_party_two(local: LocalParties, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Tries until the leader has given up the real one, which is silent."""
    hello = encode_frame((PartyHello(VERSION, 2, local.config.agreement),))
    end = time.monotonic() + 60
    while True:
        line = context.wrap_socket(Address.parse(local.config.party[0].control).connect(5))
        line.settimeout(10)
        line.sendall(hello)
        answer = line.recv(4096)
        if b"party_hello" in answer and b"refused" not in answer + _more(line):
            return line
        line.close()
        assert time.monotonic() < end, "the leader keeps a silent party"
        time.sleep(0.5)


def _more(line: ssl.SSLSocket) -> bytes:
    line.settimeout(0.5)
    with suppress(TimeoutError, OSError):
        return line.recv(4096)
    return b""
