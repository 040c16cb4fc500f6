"""What a program hears of λ+1 answers, and when, does not depend on which of them is real.

The server is the adversary: it knows this code, sees all requests, decides what comes of each and when, and watches
what the program does next. Without sockets or clocks: what happens is in the order in which the server lets it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.channel.envelope import InnerHead
from cloister.client import proxy
from cloister.client.downstream import Request
from cloister.client.obfuscating_transport import COMMENT, AsyncObfuscatingTransport
from cloister.client.proxy import Proxy
from cloister.errors import ServiceUnavailable
from cloister.obfuscation.index import Positions
from cloister.obfuscation.requests import Obfuscation
from cloister.obfuscation.variants import GivenSubstitutes
from tests.client.wire import END, ERROR, LAST, SILENCE, WORD, Wire, event, settle

FAKES = ["Bo", "Cy", "Di"]
BODY = json.dumps({"stream": True, "messages": [{"role": "user", "content": "I am <redacted>Ann</redacted>."}]})
URL = "http://api.example/v1/chat/completions"


def obfuscation(secret: bytes) -> Obfuscation:
    return Obfuscation(GivenSubstitutes([[name] for name in FAKES]), secret=secret)


SECRETS: dict[int, bytes] = {}
"""For every place a secret by which the first request's real one goes there."""
while len(SECRETS) < 4:
    one = len(SECRETS).to_bytes(16, "big") + random.Random(len(SECRETS)).randbytes(16)
    for extra in range(256):
        found = obfuscation(one[:-1] + bytes([extra])).obfuscate(URL, BODY.encode())
        assert found is not None
        if found.order.authentic == len(SECRETS):
            SECRETS[len(SECRETS)] = one[:-1] + bytes([extra])
            break


class Program:
    """A program that reads a streamed answer through the transport; `heard` is what came, piece by piece."""

    def __init__(self, real: int) -> None:
        self.wire = Wire()
        self._transport = AsyncObfuscatingTransport(self.wire, obfuscation(SECRETS[real]))
        self.heard: list[bytes] = []
        self.over = ""
        self._task: asyncio.Task[None] | None = None

    async def ask(self) -> None:
        self._task = asyncio.create_task(self._read())
        while len(self.wire.requests) < 4:  # a thread makes them up
            await asyncio.sleep(0.001)
        await settle()

    async def close(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._transport.aclose()

    @property
    def words(self) -> int:
        return b"".join(self.heard).count(b"word ")

    async def _read(self) -> None:
        try:
            answer = await self._transport.handle_async_request(httpx2.Request("POST", URL, content=BODY))
            async for piece in answer.aiter_raw():
                self.heard.append(piece)
            self.over = "ended"
        except httpx2.RequestError as error:
            self.over = type(error).__name__


class LocalProgram(Program):
    """The same behind `cloister proxy --obfuscate`, which draws where the real one goes from a secret of its own."""

    def __init__(self, real: int) -> None:
        super().__init__(real)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proxy, "plain_wire", lambda url: self.wire)
            self._proxy = Proxy("http://api.example/v1", obfuscation(SECRETS[real]))
        self._transport = self._proxy._transport

    def begin(self, head: InnerHead) -> None:
        assert head.status == 200

    def opened(self, data: bytes, ended: bool) -> None:
        if data:
            self.heard.append(data)

    async def drain(self) -> None:
        pass

    async def _read(self) -> None:
        headers = (("authorization", "Bearer k"),)
        try:
            request = Request("POST", "/v1/chat/completions", headers, BODY.encode())
            await self._proxy._exchange(request, self)  # type: ignore[arg-type]
            self.over = "ended"
        except ServiceUnavailable as error:
            self.over = str(error)


ACTS: dict[str, tuple[bytes | Exception, ...]] = {
    "word": (WORD,),
    "words in one piece": (WORD + WORD,),
    "half an event": (WORD[:9],),
    "silence": (SILENCE,),
    "comment": (b": still here\n\n",),
    "last word": (event("word ", "stop"), b"data: [DONE]\n\n"),
    "end": (LAST, END),
    "cut": (httpx2.ReadError("cut"),),
    "error": (ERROR,),
    "nonsense": (b"data: {\n\n",),
}
PLAYS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(ACTS))), max_size=14)


async def trace(kind: type[Program], real: int, play: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """After every act: how many pieces the program has heard, and how it ended."""
    program = kind(real)
    await program.ask()
    assert program.wire.place_of("Ann") == real
    seen = []
    for place, act in play:
        program.wire.say(place, *ACTS[act])
        await settle()
        seen.append((len(program.heard), program.over))
    await program.close()
    return seen


@settings(max_examples=60, deadline=None)
@given(PLAYS)
def test_when_a_program_hears_something_does_not_depend_on_which_is_real(play: list[tuple[int, str]]) -> None:
    async def traces() -> list[list[tuple[int, str]]]:
        return [await trace(Program, real, play) for real in range(4)]

    first, *others = asyncio.run(traces())
    assert all(other == first for other in others)


# ---- the adversary that was found: it stops each stream after its own number of words


async def bet(kind: type[Program], real: int) -> tuple[int, int]:
    """The program gives up when two rounds brought no word. The stream that the server had stopped before, on which it
    bets, and the real one."""
    program = kind(real)
    await program.ask()
    silent = rounds = 0
    while silent < 2:
        before = program.words
        for place in range(4):
            if rounds <= place:  # stream k says k+1 words, and is kept open
                program.wire.say(place, WORD)
        await settle()
        silent = 0 if program.words > before else silent + 1
        rounds += 1
    await program.close()
    return rounds - 2 - 1, program.wire.place_of("Ann")


@pytest.mark.parametrize("kind", [Program, LocalProgram])
async def test_a_server_that_stops_streams_one_by_one_does_not_learn_which_was_read(kind: type[Program]) -> None:
    bets = [await bet(kind, real) for real in range(4)]
    assert {on for on, _ in bets} == {0}, "whichever is real"


@contextmanager
def as_they_come() -> Iterator[None]:
    """Words of the real stream are handed over whatever the others do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Positions, "readable", property(lambda self: max(self._reached)))
        yield


@pytest.mark.parametrize("kind", [Program, LocalProgram])
async def test_where_words_are_handed_over_as_they_come_the_same_server_always_learns_it(kind: type[Program]) -> None:
    with as_they_come():
        bets = [await bet(kind, real) for real in range(4)]
    assert all(on == real for on, real in bets)


# ---- what else differs between answers


async def test_an_ended_stream_holds_nobody_up_and_its_reader_is_kept_awake() -> None:
    program = Program(0)
    await program.ask()
    for place in range(4):
        program.wire.say(place, WORD)
    program.wire.say(0, LAST, END)
    await settle()
    assert program.words == 1
    for place in (1, 2, 3):
        program.wire.say(place, WORD, WORD)
        await settle()
    assert program.words == 1 and program.heard[-1] == COMMENT and not program.over
    for place in (1, 2, 3):
        program.wire.say(place, LAST, END)
    await settle()
    assert program.over == "ended" and b"".join(program.heard).endswith(b"data: [DONE]\n\n")
    await program.close()


@pytest.mark.parametrize("silent", range(4))
async def test_a_stream_of_empty_events_holds_all_up(silent: int) -> None:
    """Somebody who sees no words loses patience, whatever else comes."""
    program = Program(1)
    await program.ask()
    for place in range(4):
        program.wire.say(place, *[SILENCE if place == silent else WORD] * 3)
    await settle()
    assert program.words == 0
    program.wire.say(silent, WORD, WORD)
    await settle()
    assert program.words == 2
    await program.close()


@pytest.mark.parametrize("odd", range(4))
async def test_an_answer_of_another_kind_fails_all_alike(odd: int) -> None:
    """An error where one is no stream: as a whole answer it would be handed over at another time than the others."""
    program = Program(1)
    program.wire.heads[odd] = {"content-type": "application/json"}
    await program.ask()
    for place in range(4):
        program.wire.say(place, WORD)
    await settle()
    assert not program.heard and not program.over
    for place in range(4):
        program.wire.say(place, END)
    await settle()
    assert program.over == "RemoteProtocolError"
    await program.close()


@pytest.mark.parametrize("real", range(4))
async def test_a_header_of_one_answer_does_not_come_back(real: int) -> None:
    """Cookies above all: a jar would send the real one's back with the next request."""
    wire = Wire()
    wire.heads = {at: {"set-cookie": f"which={at}", "x-ratelimit-remaining": str(at), "x-all": "1"} for at in range(8)}
    transport = AsyncObfuscatingTransport(wire, obfuscation(SECRETS[real]))
    async with httpx2.AsyncClient(transport=transport) as client:
        for call in range(2):
            asked = asyncio.create_task(client.post(URL, content=BODY))
            while len(wire.requests) < 4 * (call + 1):
                await asyncio.sleep(0.001)
            for place in range(4 * call, 4 * call + 4):
                wire.say(place, WORD, LAST, END)
            answer = await asked
            assert answer.headers["x-all"] == "1" and "x-ratelimit-remaining" not in answer.headers
    assert all("cookie" not in each.headers for each in wire.requests[4:])
