"""All that the controller, the service, the sealed API and the line are given of requests at `obfuscated`, in the hands
of an adversary who knows this code: it guesses which sequence is real no better than by chance.

Vault, relay and gateway are the real ones; the service is played by the rule of its engine, that all sequences of a
request end together (engine/test_partitions.py). What the vault's own words and their times tell is asked in
vault/test_obfuscating.py, what it tells to be left early in gateway/test_obfuscated.py.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from cloister.backend.base import OpenJob, VaultJob
from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from cloister.gateway.schema import SCOPE, SealedRequest
from cloister.messages.controller_frontend import Ask
from cloister.messages.controller_service import GenerateVariants
from cloister.messages.generation import Accepted, Tokens
from cloister.messages.prompts import ChatPrompt, ObfuscationParams, ObfuscationSecrets, PromptMessage, write_prompt
from cloister.messages.types import SamplingParams
from cloister.obfuscation.index import REQUEST, Order, Prf
from cloister.obfuscation.store import MemoryStore
from tests.controller import fakes
from tests.controller.fakes import FakeVault, Node
from tests.gateway.fakes import END, KEY, MODEL, ByteTokenizer, FakeBackend, FakeStream
from tests.vault.node import Room, small_decoder

NAMES = ("Ann", "Bo", "Christopher", "Desmond", "Eve", "Nakamura", "Philippa", "Zoe")
FAKES = 3
PARAMS = SamplingParams(max_tokens=8, temperature=0.0, stop_tokens=(END,))


class RealVault(FakeVault):
    """A vault behind the socket of a played one."""

    def __init__(self, end: Any, ready: bool = True) -> None:
        self.room = Room(small_decoder("llama"))
        super().__init__(end, ready)

    def put(self, message: msgspec.Struct) -> None:
        self.say(*self.room.vault.handle([message]))


class Replayed(FakeBackend):
    """Gives the gateway what the controller told it."""

    def __init__(self) -> None:
        super().__init__(("open", "partitioned", "obfuscated"))
        self.told: list[Tokens] = []

    async def generate(self, tenant: str, job: OpenJob | VaultJob, params: SamplingParams) -> FakeStream:
        stream = FakeStream(1, 9, self._all())
        stream.sequences = FAKES + 1
        return stream

    async def _all(self) -> AsyncGenerator[Tokens, None]:
        for one in self.told:
            yield one


class Path:
    """The way of a sealed request through a node, and all that is given to whom on it."""

    def __init__(self, node: Node) -> None:
        self._node, self._backend = node, Replayed()
        app = create_app(self._backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1)

        async def sealed(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, SCOPE: SealedRequest(7, 1)}, receive, send)

        transport = httpx.ASGITransport(sealed)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=KEY)

    async def ask(self, number: int, draw: random.Random) -> tuple[dict[str, list[float]], int, int]:
        """What could be seen of each sequence, how many bytes went over the line, and which is real."""
        real, *fakes = draw.sample(NAMES, FAKES + 1)
        secret = draw.randbytes(32)
        said = PromptMessage("user", f"I am <redacted>{real}</redacted>, and well.")
        prompt = ChatPrompt((said,), ObfuscationSecrets(secret, tuple((name,) for name in fakes)))
        for vault in self._node.forkserver.vaults:
            assert isinstance(vault, RealVault)
            vault.room.vault._obfuscating._store = MemoryStore()
        wish = ObfuscationParams(fakes=FAKES)
        self._node.send(Ask(number, "ann", "obfuscated", "s", True, write_prompt(prompt), PARAMS, obfuscation=wish))
        submitted = await self._node.service.next(GenerateVariants)
        self._play(submitted, draw)
        accepted = await self._node.frontend.next(Accepted)
        assert accepted.sequences == FAKES + 1
        told: list[Tokens] = []
        while not told or told[-1].finish is None:
            told.append(await self._node.frontend.next(Tokens))
        seen = _of_service(submitted) | _of_frontend(told)
        line, of_choices = await self._sealed(told)
        return seen | of_choices, line, Prf(secret).order(REQUEST, FAKES + 1).authentic

    def _play(self, submitted: GenerateVariants, draw: random.Random) -> None:
        """Each sequence says something of its own length and its end; all go on until the last has ended."""
        lengths = [draw.randrange(1, 6) for _ in submitted.partitions]
        for step in range(whole := max(lengths) + 1):
            for at, length in enumerate(lengths):
                token = draw.randrange(97, 123) if step < length else END if step == length else ord("~")
                last = step + 1 == whole and at == FAKES
                said = Tokens(submitted.request_id, (token,), sequence=at, finish="stop" if last else None)
                self._node.service.say(said)

    async def _sealed(self, told: list[Tokens]) -> tuple[int, dict[str, list[float]]]:
        """What the sealed API writes of each choice, and when it ends it."""
        self._backend.told = told
        asked = {"model": MODEL, "messages": {"sealed": 1}, "protection": "obfuscated", "temperature": 0}
        body = {**asked, "obfuscation": {"fakes": FAKES}, "stream": True}
        answer = await self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        written, events, ends = Counter[int](), Counter[int](), dict[int, int]()
        for number, event in enumerate(answer.content.split(b"\n\n")):
            if event.startswith(b"data: {"):
                [choice] = json.loads(event[6:])["choices"]
                written[choice["index"]] += len(event)
                events[choice["index"]] += 1
                if choice["finish_reason"]:
                    ends[choice["index"]] = number
        every = range(FAKES + 1)
        seen = {"bytes": written, "events": events, "end": ends}
        return len(answer.content), {name: [float(each[at]) for at in every] for name, each in seen.items()}


def _of_service(submitted: GenerateVariants) -> dict[str, list[float]]:
    """What the service and the controller have of each sequence before it says a word."""
    fields = ("slot", "first", "origin", "rotation")
    seen = {name: [float(getattr(one, name)) for one in submitted.partitions] for name in fields}
    return {"place": [float(at) for at in range(len(submitted.partitions))], **seen}


def _of_frontend(told: list[Tokens]) -> dict[str, list[float]]:
    """What the controller hands on: when each is heard of first and last, and how often."""
    places = [[at for at, one in enumerate(told) if one.sequence == number] for number in range(FAKES + 1)]
    counted = {"heard first": [each[0] for each in places], "heard last": [each[-1] for each in places]}
    counted["messages"] = [len(each) for each in places]
    return {name: [float(each) for each in values] for name, values in counted.items()}


@pytest.fixture
async def path(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    monkeypatch.setattr(fakes, "FakeVault", RealVault)
    monkeypatch.setattr(fakes, "SERVING", replace(fakes.SERVING, vocabulary=512))
    monkeypatch.setattr(fakes, "VOCABULARY", 512)
    node = await Node.build(spare_vaults=0)
    path = Path(node)
    yield path
    await path.http.aclose()
    node.close()
    for vault in node.forkserver.vaults:
        assert isinstance(vault, RealVault)
        vault.room.answerer.close()


async def hits(path: Path, count: int) -> dict[str, float]:
    """How often each way to guess is right; one that finds several alike draws among them."""
    draw, found = random.Random(17), Counter[str]()
    for number in range(1, count + 1):
        seen, line, real = await path.ask(number, draw)
        for name, values in seen.items():
            for way in (min, max):
                best = way(values)
                found[f"{way.__name__} {name}"] += draw.choice([at for at in range(4) if values[at] == best]) == real
        found["line"] += line % (FAKES + 1) == real
    return dict(found)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(40, 1, 22), pytest.param(500, 80, 172, marks=pytest.mark.release)],
    ids=["40", "500"],
)
async def test_nobody_on_the_way_can_tell_which_is_real(path: Path, count: int, low: int, high: int) -> None:
    """One in four is right by chance; outside of these with one in a hundred thousand."""
    found = await hits(path, count)
    assert len(found) == 23 and all(low <= right <= high for right in found.values()), found


async def test_where_the_order_is_not_drawn_the_same_adversary_wins(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prf, "order", lambda prf, context, count: Order(tuple(range(count))))
    found = await hits(path, 8)
    assert found["min place"] == found["min heard first"] == 8
