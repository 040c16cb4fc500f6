"""What the network link costs: `python -m tests.outpost.cost`, on an otherwise idle machine.

One run measures the same decoding at `open`, at `partitioned` with vaults beside the service, and with vaults in an
outpost: over loopback, and over a cable to another network namespace where one can be made.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from cloister.config import EngineSettings
from cloister.link.network.secret import write_secret
from cloister.messages.generation import SamplingParams
from cloister.models.source import find_model
from cloister.models.tokenizer import Tokenizer
from cloister.service.base import OpenJob, VaultJob
from tests.controller.house import RealHouse, private
from tests.outpost.house import OutpostProcess, another_network, why_no_namespaces

USERS = (1, 8)
TOKENS = 48
ROUNDS = 3
PROMPT = "Tell me about the rivers of Europe, the cities they pass, and the seas they reach in the end. " * 3
ENGINE = EngineSettings(dtype="bf16", kv_cache_mib=256, vault_kv_mib=32, link_deadline_ms=10_000)


async def one_user(house: RealHouse, job: OpenJob | VaultJob) -> tuple[float, float, int]:
    """When the second token came, when the last, and how many came between. The first is the prefill's."""
    params = SamplingParams(max_tokens=TOKENS, temperature=0, logit_bias={2: -100.0, 0: -100.0})
    stream = await house.client.generate("tenant", job, params)
    begun, count = 0.0, 0
    async for part in stream:
        if not begun:
            begun = time.perf_counter()
        else:
            count += len(part.tokens)
    return begun, time.perf_counter(), count


async def ms_per_step(house: RealHouse, jobs: list[OpenJob | VaultJob]) -> float:
    """From the moment all decode: a step gives every user one token."""
    times = await asyncio.gather(*(one_user(house, job) for job in jobs))
    latest = max(times)
    return (latest[1] - latest[0]) / latest[2] * 1000


async def measure() -> None:
    folder = find_model(None)
    prompt = tuple(Tokenizer(folder).encode(PROMPT, True))
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_secret(temporary / "key")
        places = {"loopback": OutpostProcess(temporary / "loopback", temporary / "key")}
        stack.callback(places["loopback"].stop)
        if not why_no_namespaces():
            name, host = stack.enter_context(another_network())
            where = {"listen": f"{host}:7000", "namespace": name}
            places["veth"] = OutpostProcess(temporary / "veth", temporary / "key", **where)
            stack.callback(places["veth"].stop)
        houses = {"shared memory": await RealHouse.start(folder, ENGINE, spare_vaults=1)}
        for place, outpost in places.items():
            settings = {"outpost": outpost.address(), "outpost_key": temporary / "key", "spare_vaults": 1}
            houses[place] = await RealHouse.start(folder, ENGINE, **settings)
        try:
            for users in USERS:
                found: dict[str, list[float]] = {}
                for _ in range(ROUNDS):
                    opened: list[OpenJob | VaultJob] = [OpenJob(prompt) for _ in range(users)]
                    found.setdefault("open", []).append(await ms_per_step(houses["shared memory"], opened))
                    for place, house in houses.items():
                        jobs: list[OpenJob | VaultJob] = [private(PROMPT, f"s{n}") for n in range(users)]
                        found.setdefault(place, []).append(await ms_per_step(house, jobs))
                for place, times in found.items():
                    print(
                        f"{users} users, {place}: {median(times):.2f} ms per step ({min(times):.2f} at best)",
                        flush=True,
                    )
        finally:
            for house in houses.values():
                await house.close()


if __name__ == "__main__":
    asyncio.run(measure())
