"""What the network link costs: `python -m tests.vault_host.cost`, on an otherwise idle machine.

One run measures the same decoding at `open`, at `partitioned` with vaults beside the service, and with vaults on a
vault host: over loopback, and over a cable to another network namespace where one can be made.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from cloister.backend.base import OpenJob, VaultJob
from cloister.config import EngineSettings
from cloister.link.network.credentials import write_secret
from cloister.messages.types import SamplingParams
from cloister.models.source import find_model
from cloister.prompts.tokenizer import Tokenizer
from tests.controller.node import RealNode, private
from tests.vault_host.host_process import HostProcess, another_network, why_no_namespaces

USERS = (1, 8)
TOKENS = 96
ROUNDS = 2
PROMPT = "Tell me about the rivers of Europe, the cities they pass, and the seas they reach in the end. " * 3
ENGINE = EngineSettings(dtype="bf16", threads=1, kv_cache_mib=256, vault_kv_mib=32, link_deadline_ms=10_000)

# Service and vault host have no floor in common, so each gets cores of its own, as on two machines.
ONE = ("--threads", "1", "--vault-kv-mib", "32")


async def one_user(node: RealNode, job: OpenJob | VaultJob, tokens: int = TOKENS) -> list[float]:
    """When each of its tokens came."""
    params = SamplingParams(max_tokens=tokens, temperature=0, logit_bias={2: -100.0, 0: -100.0})
    stream = await node.client.generate("tenant", job, params)
    return [time.perf_counter() async for part in stream for _ in part.tokens]


async def ms_per_step(node: RealNode, jobs: list[OpenJob | VaultJob]) -> float:
    """While all decode, and none is being prefilled: a step gives every user one token."""
    times = await asyncio.gather(*(one_user(node, job) for job in jobs))
    begun, ended = max(one[0] for one in times), min(one[-1] for one in times)
    within = [moment for moment in times[0] if begun <= moment <= ended]
    return (within[-1] - within[0]) / (len(within) - 1) * 1000


async def measure() -> None:
    folder = find_model(None)
    prompt = tuple(Tokenizer(folder).encode(PROMPT, True))
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_secret(temporary / "key")
        places = {"loopback": HostProcess(temporary / "loopback", temporary / "key", *ONE)}
        stack.callback(places["loopback"].stop)
        if not why_no_namespaces():
            name, host = stack.enter_context(another_network())
            where = {"listen": f"{host}:7000", "namespace": name}
            places["veth"] = HostProcess(temporary / "veth", temporary / "key", *ONE, **where)
            stack.callback(places["veth"].stop)
        nodes = {"shared memory": await RealNode.start(folder, ENGINE, spare_vaults=1)}
        for place, vault_host in places.items():
            settings = {"vault_host": vault_host.address(), "vault_host_key": temporary / "key", "spare_vaults": 1}
            nodes[place] = await RealNode.start(folder, ENGINE, **settings)
        try:
            for users in USERS:
                found: dict[str, list[float]] = {}
                for _ in range(ROUNDS):
                    opened: list[OpenJob | VaultJob] = [OpenJob(prompt) for _ in range(users)]
                    found.setdefault("open", []).append(await ms_per_step(nodes["shared memory"], opened))
                    for place, node in nodes.items():
                        # Sessions that are kept: their vaults are there, and hold the prompt, when the clock starts.
                        jobs: list[OpenJob | VaultJob] = [private(PROMPT, f"s{n}", keep=True) for n in range(users)]
                        await asyncio.gather(*(one_user(node, job, tokens=1) for job in jobs))
                        found.setdefault(place, []).append(await ms_per_step(node, jobs))
                for place, times in found.items():
                    print(
                        f"{users} users, {place}: {median(times):.2f} ms per step ({min(times):.2f} at best)",
                        flush=True,
                    )
        finally:
            for node in nodes.values():
                await node.close()
            for vault_host in places.values():
                print(vault_host.said, end="")


if __name__ == "__main__":
    asyncio.run(measure())
