"""Parties on this machine with a model of one small layer, dealt to them; and what they should answer."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.certificates import Keys
from cloister_mpc.client.parties import Parties
from cloister_mpc.client.passes import ModelAtParties, TokenPasses
from cloister_mpc.config import Limits
from cloister_mpc.local_parties import CONFIG_FILE, KEYS, Supervisor, make_local
from cloister_mpc.model.shape import ModelShape
from cloister_mpc.model.weights import LayerWeights, ModelWeights, OuterWeights
from cloister_mpc.provider.dealing import deal_weights, tag_key

SHAPE = ModelShape(
    layers=1,
    heads=2,
    kv_heads=1,
    head_size=4,
    hidden=8,
    inner=8,
    vocabulary=300,
    context=128,
    epsilon=1e-5,
    biases=False,
    tied=True,
    rotation=(1.0, 0.01),
    scales=(1.0,),
)
PLAN = CachePlan(method="full")
PROMPT = (5, 5, 5, 5, 5, 5, 5, 5, 5, 5)
LIMITS = Limits(silence_s=8.0, run_silence_s=60.0, sessions=3, start_s=90.0)


def weights(seed: int = 1) -> ModelWeights:
    rng = np.random.default_rng(seed)

    def matrix(*dims: int) -> Any:
        return (rng.normal(size=dims) / np.sqrt(dims[-1])).astype(np.float32)

    outer = OuterWeights(
        embedding=rng.normal(size=(300, 8)).astype(np.float32),
        gain=np.ones((8, 1), np.float32),
        head=np.zeros((0, 0), np.float32),
    )
    layer = LayerWeights(matrix(16, 8), matrix(8, 8), matrix(16, 8), matrix(8, 8), np.zeros((2, 1, 1), np.float32))
    return ModelWeights(outer, [layer])


class LocalParties:
    """The parties' processes, as a test needs them."""

    def __init__(
        self,
        folder: Path,
        hosts: tuple[str, ...] = (),
        before: dict[int, list[str]] | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.config = make_local(folder, hosts=hosts, limits=limits)
        self.keys = Keys(folder / KEYS)
        self.supervisor = Supervisor(folder / CONFIG_FILE, logs=folder, before=before)

    @cached_property
    def model(self) -> ModelAtParties:
        return ModelAtParties(self.config, self.keys.client(), PLAN)

    def log(self, rank: int) -> str:
        return (self.folder / f"party-{rank}.log").read_text()

    async def as_client(self) -> Parties:
        return await Parties.connect(self.config, self.keys.client(), 60)

    async def deal(self, made: ModelWeights | None = None) -> list[tuple[str, bool]]:
        """Deal the weights; which had to be dealt."""
        provider = await Parties.connect(self.config, self.keys.provider, 60)
        told: list[tuple[str, bool]] = []
        try:
            named = (made or weights()).named()
            key = tag_key(self.keys.provider.key)
            shape = msgspec.json.encode(SHAPE)
            await deal_weights(provider, "tiny", shape, named, key, lambda *each: told.append(each))
        finally:
            await provider.close()
        return told

    async def opened(self, patience_s: float = 90) -> TokenPasses:
        """A generation at parties that are ready, or soon will be; of logits, which take the least to compile."""
        await connected(self, patience_s)
        return await self.model.open(len(PROMPT), 8, "logits", lambda _: None)

    def party(self, rank: int) -> psutil.Process:
        """The party's own process, wherever it runs."""
        started = psutil.Process(self.supervisor.processes[rank].pid)
        return next(each for each in (started, *started.children()) if "cloister_mpc.party.party" in each.cmdline())

    def child(self, rank: int, module: str) -> psutil.Process:
        """The party's engine or tunnel."""
        return next(each for each in self.party(rank).children() if f"cloister_mpc.party.{module}" in each.cmdline())

    def close(self) -> None:
        self.supervisor.close()


async def connected(local: LocalParties, patience_s: float) -> None:
    """Until the parties are ready, whatever happens to them meanwhile."""
    from cloister.errors import CloisterError

    end = time.monotonic() + patience_s
    while True:
        try:
            await local.model.connect(10.0)
            return
        except CloisterError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.5)


async def tokens(passes: TokenPasses, count: int, prompt: Sequence[int] = PROMPT) -> list[int]:
    """A greedy answer."""
    answer = [int((await passes.prefill(prompt, None)).argmax())]
    while len(answer) < count:
        answer.append(int((await passes.step(len(answer) - 1, answer[-1:], None)).argmax()))
    return answer


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if process.is_running():
            os.kill(process.pid, signal.SIGCONT)
