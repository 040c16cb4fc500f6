"""Users without a pause at a server whose vaults are elsewhere.

    python -m tests.vault_host.soak SECONDS [DEADLINE_MS]

Each asks again as soon as it is answered: in a session of its own or in one it keeps, at either level, now and then
leaving in the middle. Every answer is compared with what `open` says.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cloister.backend.base import OpenJob, VaultJob
from cloister.config import EngineSettings
from cloister.errors import CloisterError
from cloister.link.network.credentials import write_secret
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from tests.controller.node import RealNode, private
from tests.short_model import short_model
from tests.vault_host.host_process import running_host

USERS = 8
LONGEST = 48
ENGINE = EngineSettings(dtype="bf16", threads=1, kv_cache_mib=64, vault_kv_mib=8)
HOST = ("--threads", "1", "--vault-kv-mib", "8")
WORDS = "The rivers of Europe, the cities they pass, and the seas that they reach in the end. "
PROMPTS = tuple(f"{number}. {WORDS * (1 + number % 5)}"[: 24 + 40 * number] for number in range(8))


@dataclass
class Found:
    """What became of all requests: how many there were of each kind, and what went wrong."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_start_ms: float = 0.0
    """Of the vaults whose start was seen."""


async def tokens_of(node: RealNode, job: OpenJob | VaultJob, count: int, leave_after: int = LONGEST) -> list[int]:
    params = SamplingParams(max_tokens=count, temperature=0)
    stream = await node.client.generate("tenant", job, params)
    heard: list[int] = []
    async for part in stream:
        heard += part.tokens
        if len(heard) >= leave_after:
            await stream.aclose()
            break
    return heard


async def soak(node: RealNode, folder: ModelFolder, seconds: float, users: int = USERS) -> Found:
    """All users at once, until the time is over and each has its last answer."""
    tokenizer, found = Tokenizer(folder), Found()
    expected = [await tokens_of(node, OpenJob(tuple(tokenizer.encode(text, True))), LONGEST) for text in PROMPTS]
    begun = time.monotonic()

    async def user(number: int) -> None:
        random = Random(number)
        asked = 0
        while time.monotonic() < begun + seconds:
            asked += 1
            which, count = random.randrange(len(PROMPTS)), random.randint(1, LONGEST)
            kind = random.choice(("fresh", "fresh", "kept", "kept", "isolated", "left"))
            session = f"of {number}" if kind == "kept" else f"{number}, {asked}"
            level = "isolated" if kind == "isolated" else "partitioned"
            job = private(PROMPTS[which], session, keep=kind == "kept", level=level)
            try:
                heard = await tokens_of(node, job, count, random.randint(1, 4) if kind == "left" else LONGEST)
            except CloisterError as reason:
                found.wrong.append(f"{time.monotonic() - begun:.1f} s, user {number}, {kind}: {reason.code} {reason}")
                continue
            found.answers[kind] += 1
            ready_ms = node.controller.relay.vaults.ready_ms or 0.0
            found.slowest_start_ms = max(found.slowest_start_ms, ready_ms)
            whole = expected[which][:count]
            if heard != (whole[: len(heard)] if kind == "left" else whole):
                found.wrong.append(f"{time.monotonic() - begun:.1f} s, user {number}, {kind}: not what open says")
            if kind == "kept" and random.random() < 0.2:
                await node.client.end_session("tenant", session)
        await node.client.end_session("tenant", f"of {number}")

    await asyncio.gather(*(user(number) for number in range(users)))
    return found


@asynccontextmanager
async def deployed(folder: ModelFolder, temporary: Path, engine: EngineSettings = ENGINE) -> AsyncIterator[RealNode]:
    """A server whose vaults live on a vault host; what that said is printed in the end."""
    write_secret(temporary / "key")
    with running_host(temporary / "host", temporary / "key", "--model", str(folder.path), *HOST) as vault_host:
        node = await RealNode.start(folder, engine, vault_host=vault_host.address(), vault_host_key=temporary / "key")
        try:
            yield node
        finally:
            await node.close()
            print(vault_host.said)


async def _measure(seconds: float, deadline_ms: int) -> None:
    folder, engine = short_model(), ENGINE.model_copy(update={"link_deadline_ms": deadline_ms})
    with tempfile.TemporaryDirectory() as temporary:
        async with deployed(folder, Path(temporary), engine) as node:
            begun = time.monotonic()
            found = await soak(node, folder, seconds)
            minutes = (time.monotonic() - begun) / 60
    print(
        f"{minutes:.1f} min: {dict(found.answers)}, slowest start {found.slowest_start_ms:.0f} ms",
        *found.wrong,
        sep="\n",
    )


if __name__ == "__main__":
    asyncio.run(_measure(float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else ENGINE.link_deadline_ms))
