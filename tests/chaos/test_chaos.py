"""A real server under load while its vaults and its service are killed and frozen at random.

What finishes is exact, what fails fails with a typed error and soon, the server keeps serving, and when the storm is
over nothing of it is left: no process, no descriptor, no block, no memory. Before a release the storm is longer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cloister.config import DEVELOPMENT_KEY
from cloister.models.source import ModelFolder
from tests.served import Server, lives, running_server

USERS = 4
QUESTIONS = 8
SPARES = 2
LINK_DEADLINE_S = 1.0
FROZEN_S = 2.5
HANGS_S = 300.0
"""A request that hears nothing for so long is taken to hang; far above what a busy machine needs."""

ARGUMENTS = (
    *("--kv-cache-mib", "128", "--vault-kv-mib", "32", "--spare-vaults", str(SPARES)),
    *("--link-deadline-ms", str(int(LINK_DEADLINE_S * 1000)), "--session-idle", "5"),
)
LEVELS = ("open", "partitioned", "partitioned", "partitioned", "isolated")
WORDS = [
    "river",
    "stone",
    "lantern",
    "orchard",
    "harbour",
    "violin",
    "winter",
    "garden",
    "copper",
    "meadow",
    "signal",
    "thunder",
]
ALLOWED_CODES = {"vault_lost", "service_unavailable"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Tally:
    """What became of the requests."""

    finished: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


class Crowd:
    """Users with questions whose answers, at `open` and in peace, are known."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self.client = self._connect()
        self._model = model
        self._bodies = [self._body(number) for number in range(QUESTIONS)]
        self._answers: list[str] = []
        self.tally = Tally()

    def _connect(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {DEVELOPMENT_KEY}"}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self._url, headers=headers, timeout=HANGS_S, limits=limits)

    async def hang_up(self) -> None:
        """Leave no connection open that the gateway would have to hold."""
        await self.client.aclose()
        self.client = self._connect()

    def _body(self, number: int) -> dict[str, Any]:
        chosen = random.Random(number)
        text = " ".join(chosen.choice(WORDS) for _ in range(chosen.choice((5, 40, 200))))
        content = f"Public. <confidential>{text}</confidential>" if number % 3 == 0 else f"Continue: {text}"
        messages = [{"role": "user", "content": content, "public": number % 3 == 0}]
        tokens = chosen.choice((1, 8, 32, 48))
        return {"model": self._model, "messages": messages, "temperature": 0, "max_tokens": tokens}

    async def learn(self) -> None:
        replies = await asyncio.gather(*(self._post({**body, "protection": "open"}) for body in self._bodies))
        self._answers = [reply.json()["choices"][0]["message"]["content"] for reply in replies]
        assert len(set(self._answers)) > QUESTIONS // 2

    async def _post(self, body: dict[str, Any]) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=body)

    async def use(self, user: int, enough: Callable[[], bool]) -> None:
        """Ask one thing after the other; some users keep a session, some stream."""
        chance = random.Random(user)
        while not enough():
            number = chance.randrange(len(self._bodies))
            level = chance.choice(LEVELS)
            body = {**self._bodies[number], "protection": level, "stream": chance.random() < 0.5}
            if user % 3 == 0:
                body["session"] = f"user-{user}"
            code, text = await (self._streamed(body) if body["stream"] else self._whole(body))
            if code is None:
                assert text == self._answers[number], f"another answer at {level}"
                self.tally.finished[level] += 1
            else:
                assert code in ALLOWED_CODES, code
                self.tally.failed[code] += 1
                await asyncio.sleep(0.2)

    async def use_once(self) -> None:
        """Every user asks one thing."""
        await asyncio.gather(*(self.use(user, iter((False, True)).__next__) for user in range(USERS)))

    async def _whole(self, body: dict[str, Any]) -> tuple[str | None, str]:
        reply = await self._post(body)
        if reply.status_code == 200:
            return None, reply.json()["choices"][0]["message"]["content"]
        assert reply.status_code == 503, (reply.status_code, reply.text)
        return reply.json()["error"]["code"], ""

    async def _streamed(self, body: dict[str, Any]) -> tuple[str | None, str]:
        text = ""
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                assert reply.status_code == 503
                return json.loads(await reply.aread())["error"]["code"], ""
            async for line in reply.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return event["error"]["code"], ""
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        return None, text


class Storm:
    """Kills and freezes sealed processes: all that the fork server forked, whatever they are."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._chance = random.Random(1)
        self.done: Counter[str] = Counter()

    async def rage(self, deeds: int, enough: Callable[[], bool]) -> None:
        """So many deeds at least. The service is killed once and a vault frozen once, whatever the draw."""
        for deed in count():
            if deed >= deeds and enough():
                return
            await asyncio.sleep(self._chance.uniform(0.5, 1.5))
            victims = sealed_of(self._server)
            if not victims:
                continue
            # The eldest is most likely the service: were it hit as often as any, nothing would ever finish.
            eldest = deed == deeds // 2 or self._chance.random() < 0.08
            victim = victims[0] if eldest else self._chance.choice(victims)
            with suppress(psutil.Error):
                if deed == deeds // 4 or (deed != deeds // 2 and self._chance.random() < 0.2):
                    self.done["frozen"] += 1
                    victim.suspend()
                    await asyncio.sleep(FROZEN_S)
                    victim.resume()
                else:
                    self.done["killed"] += 1
                    victim.kill()


def sealed_of(server: Server) -> list[psutil.Process]:
    """The fork server's living children, the eldest first."""
    with suppress(psutil.Error):
        found = [one for forkserver in server.child("forkserver").children() for one in forkserver.children()]
        return sorted((one for one in found if lives(one)), key=lambda one: one.create_time())
    return []


@dataclass(frozen=True)
class Holdings:
    """What the controller and the gateway hold when nothing is going on."""

    descriptors: dict[str, int]
    kinds: dict[str, int]
    memory: dict[str, int]
    sealed: int

    @classmethod
    def of(cls, server: Server) -> Holdings:
        controller = psutil.Process(server.process.pid)
        people = {"controller": controller, "gateway": server.child("gateway")}
        kinds: Counter[str] = Counter()
        descriptors = {}
        with suppress(PermissionError, psutil.AccessDenied):  # they are not dumpable: only root may look
            descriptors = {name: one.num_fds() for name, one in people.items()}
            for each in Path(f"/proc/{controller.pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    kinds[os.readlink(each).split(":")[0].rpartition("/")[2]] += 1
        memory = {name: one.memory_info().rss for name, one in people.items()}
        return cls(descriptors, dict(kinds), memory, len(sealed_of(server)))


async def eventually(true: Callable[[], bool], patience_s: float = 240) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, "it does not come to rest"
        await asyncio.sleep(0.2)


async def at_rest(server: Server, crowd: Crowd) -> Holdings:
    """No request, no session: one service and the spare vaults."""
    await crowd.hang_up()
    await eventually(lambda: len(sealed_of(server)) == 1 + SPARES)
    end = time.monotonic() + 240
    while True:
        numbers = metrics((await crowd.client.get("/metrics")).text)
        if not any(numbers[f"cloister_{what}"] for what in ("kv_blocks_used", "running", "waiting", "vaults")):
            return Holdings.of(server)
        assert time.monotonic() < end, numbers
        await asyncio.sleep(0.5)


def metrics(text: str) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


@pytest.mark.parametrize("deeds", [4, pytest.param(130, marks=pytest.mark.release)])
async def test_random_kills_under_load(deeds: int, tmp_path: Path, short_folder: ModelFolder) -> None:
    shared_before = set(os.listdir("/dev/shm"))
    with running_server(tmp_path / "log", *ARGUMENTS, "--model", str(short_folder.path)) as server:
        crowd = Crowd(server.url(), short_folder.name)
        await crowd.learn()
        await crowd.use_once()
        assert not crowd.tally.failed, crowd.tally
        before = await at_rest(server, crowd)

        storm = Storm(server)
        crowd.tally.finished.clear()
        raging = asyncio.create_task(storm.rage(deeds, lambda: set(crowd.tally.failed) == ALLOWED_CODES))

        def enough() -> bool:
            return raging.done() and set(crowd.tally.finished) == set(LEVELS)

        await asyncio.gather(raging, *(crowd.use(user, enough) for user in range(USERS)))
        assert storm.done["killed"] and storm.done["frozen"], storm.done
        assert set(crowd.tally.failed) == ALLOWED_CODES, crowd.tally

        left = await at_rest(server, crowd)
        assert left.kinds == before.kinds and left.descriptors == before.descriptors
        assert left.sealed == before.sealed
        for name, size in left.memory.items():
            assert size < before.memory[name] * 1.5 + (32 << 20), name
        crowd.tally = Tally()
        await crowd.use_once()
        assert crowd.tally.finished

        family = server.children()
        await crowd.client.aclose()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        await eventually(lambda: not alive(family), 10)
    assert not {name for name in set(os.listdir("/dev/shm")) - shared_before if "cloister" in name}
    said = server.said
    assert "Traceback" not in said and not any(word in said for word in WORDS)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if lives(one)]
