"""The whole node but for its HTTP edge, with real processes: it serves, parts of it die, and it comes back."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from cloister.backend.base import OpenJob, VaultJob
from cloister.errors import ModelCorrupt, PromptTooLong, QueueFull, ServiceUnavailable, VaultLost
from cloister.messages.generation import Stats
from cloister.messages.prompts import ObfuscationParams, ObfuscationSecrets, TextPrompt, write_prompt
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister.models.source import ModelFolder
from cloister.obfuscation.index import REQUEST, Prf
from tests.controller.node import ENGINE, RealNode, private
from tests.forkserver.model import save_model
from tests.served import lives

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

TEXT = "Forty bytes of text, more or less, are it"
PROMPT = tuple(range(5, 45))
GREEDY = SamplingParams(max_tokens=12, temperature=0)
ENDLESS = SamplingParams(max_tokens=400, temperature=0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tiny: ModelFolder) -> AsyncIterator[RealNode]:
    node = await RealNode.start(tiny, spare_vaults=1, vault_deadline_s=2.0)
    yield node
    await node.close()


async def answer(node: RealNode, job: OpenJob | VaultJob, params: SamplingParams = GREEDY) -> list[int]:
    stream = await node.client.generate("tenant", job, params)
    return [token async for part in stream for token in part.tokens]


async def drained(node: RealNode) -> Stats:
    """The stats once nothing runs any more."""
    while True:
        stats = await node.client.stats()
        if not stats.running and not stats.waiting:
            return stats
        await asyncio.sleep(0.01)


def vault_pids(node: RealNode) -> list[int]:
    return [vault._child.pid for vault in node.controller.relay.sessions.vaults() if vault._child.pid]


async def service_is_back(node: RealNode) -> None:
    """Every level that is offered was rehearsed again, and is served."""
    async with asyncio.timeout(60):
        while True:
            with suppress(ServiceUnavailable):
                if (await node.client.stats()).levels == node.client.ready.levels:
                    return
            await asyncio.sleep(0.02)


HIDDEN = {
    "one": ("My name is {}, and I ask.", (("Ann",), ("Bob",), ("Eve",))),
    "two": ("{} and {} went up the hill to fetch water.", (("Jack", "Jill"), ("Hans", "Gret"), ("Tom", "Pia"))),
    "three, of other lengths": (
        "Dr. {} of {} saw the patient, aged {}, before noon.",
        (("Lee", "Ghent", "71"), ("Nakamura", "Rome", "4"), ("Osei", "San Remo", "102")),
    ),
    "four": (
        "{}, {}, {} and {} are in this order.",
        (("a1", "b1", "c1", "d1"), ("a2", "b2", "c2", "d2"), ("a3", "b3", "c3", "d3")),
    ),
}  # fmt: skip


def drawn(seed: int) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """A text with one to four secrets, and values of any length for them."""
    draw = random.Random(seed)
    count = draw.randrange(1, 5)
    words = [draw.choice(("said", "then", "to", "near", "before")) for _ in range(count + draw.randrange(12))]
    for at in sorted(draw.sample(range(len(words)), count), reverse=True):
        words.insert(at, "{}")
    names = iter(draw.sample(range(10**9), 4 * count))
    return " ".join(("It", *words, "end.")), tuple(
        tuple(f"{next(names):x}"[: draw.randrange(4, 9)] for _ in range(count)) for _ in range(4)
    )


@pytest.mark.parametrize(
    ("text", "values"),
    [*HIDDEN.values(), *(pytest.param(*drawn(seed), marks=pytest.mark.release) for seed in range(100))],
    ids=[*HIDDEN, *map(str, range(100))],
)
async def test_hidden_among_others_an_answer_is_that_of_partitioned(
    node: RealNode, text: str, values: tuple[tuple[str, ...], ...]
) -> None:
    """Token for token and score for score, the real one and every other: with what ends one, all go on."""
    secret = os.urandom(32)
    real, *fakes = values
    marked = TextPrompt(
        text.format(*(f"<redacted>{value}</redacted>" for value in real)),
        hidden=ObfuscationSecrets(secret, tuple(fakes)),
    )
    params = SamplingParams(max_tokens=16, temperature=0.8, seed=5, logprobs=2, stop_tokens=tuple(range(40, 60)))
    job = VaultJob("obfuscated", "hidden", False, write_prompt(marked), obfuscation=ObfuscationParams(len(fakes)))
    stream = await node.client.generate("tenant", job, params)
    said: dict[int, list[tuple[int, TokenLogprob]]] = {}
    async for part in stream:
        scores = zip(part.tokens, part.logprobs or (), strict=True)
        said.setdefault(part.sequence, []).extend(scores)
    assert stream.sequences == len(values) == len(said)
    assert len({len(each) for each in said.values()}) == 1
    endless = replace(params, stop_tokens=())
    order = Prf(secret).order(REQUEST, len(values))
    for place, variant in enumerate(order.places):
        alone = await node.client.generate("tenant", private(text.format(*values[variant]), "alone"), endless)
        scored = [pair async for part in alone for pair in zip(part.tokens, part.logprobs or (), strict=True)]
        assert said[place] == scored[: len(said[place])]


async def test_greedy_tokens_are_transformers_own_at_every_level(node: RealNode, tiny: ModelFolder) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
    from cloister.prompts.tokenizer import Tokenizer

    before = await node.client.stats()
    prompt = Tokenizer(tiny).encode(TEXT, True)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    expected = expected[0, len(prompt) :].tolist()
    assert await answer(node, OpenJob(tuple(prompt))) == expected
    stream = await node.client.generate("tenant", private(TEXT, "a"), GREEDY)
    assert stream.prompt_tokens == len(prompt)
    assert [token async for part in stream for token in part.tokens] == expected
    assert await answer(node, private(TEXT, "b", level="isolated")) == expected
    stats = await drained(node)
    assert stats.prompt_tokens - before.prompt_tokens == 3 * len(prompt)
    assert stats.output_tokens - before.output_tokens == 36


async def test_many_at_once_get_what_each_gets_alone(node: RealNode) -> None:
    texts = [TEXT[: 3 + 7 * start % 39] + str(start) for start in range(12)]
    alone = [await answer(node, private(text, str(number))) for number, text in enumerate(texts)]
    together = await asyncio.gather(*(answer(node, private(text, f"s{n % 4}")) for n, text in enumerate(texts)))
    assert together == alone
    stats = await drained(node)
    assert stats.blocks_free == stats.blocks_total and stats.vaults == 0


async def test_leaving_frees_what_was_held_at_whatever_stage(node: RealNode) -> None:
    before = await node.client.stats()
    jobs = [OpenJob(PROMPT), private(TEXT, "a"), private(TEXT, "k", keep=True), private(TEXT, "i", level="isolated")]
    streams = [await node.client.generate("tenant", job, ENDLESS) for job in jobs]
    await anext(streams[0])
    await anext(streams[2])
    for stream in streams:
        await stream.aclose()
    waiting = [asyncio.create_task(node.client.generate("tenant", job, ENDLESS)) for job in jobs]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    stats = await asyncio.wait_for(drained(node), 20)
    assert stats.blocks_free == stats.blocks_total and stats.vaults == 1
    # they did not just run to their ends, unheard
    assert stats.output_tokens - before.output_tokens < 3 * ENDLESS.max_tokens
    assert len(await answer(node, private(TEXT, "k", keep=True))) == 12
    await node.client.end_session("tenant", "k")


async def test_refusals_keep_their_type(tiny: ModelFolder) -> None:
    narrow = ENGINE.model_copy(update={"max_waiting": 1, "max_waiting_per_tenant": 1, "max_running": 1})
    node = await RealNode.start(tiny, narrow, spare_vaults=0, max_vaults=1, max_waiting_for_vaults=0)
    try:
        with pytest.raises(PromptTooLong):
            await node.client.generate("tenant", OpenJob(tuple([1] * 600)), GREEDY)
        with pytest.raises(PromptTooLong):
            await node.client.generate("tenant", private("x" * 600, "a"), GREEDY)
        with pytest.raises(QueueFull) as full:
            await asyncio.gather(*(node.client.generate("tenant", OpenJob(PROMPT), ENDLESS) for _ in range(8)))
        assert full.value.retry_after >= 1
        with pytest.raises(QueueFull):
            await asyncio.gather(*(node.client.generate("t", private(TEXT, str(n)), ENDLESS) for n in range(2)))
    finally:
        await node.close()


async def test_a_killed_service_fails_its_requests_comes_back_and_sessions_survive(node: RealNode) -> None:
    job = private(TEXT, "kept", keep=True)
    before = await answer(node, job)
    [vault] = vault_pids(node)
    streams = [await node.client.generate("tenant", one, ENDLESS) for one in (OpenJob(PROMPT), job)]
    for stream in streams:
        await anext(stream)
    assert node.controller.compute.service
    pid = node.controller.compute.service._handle.pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(ServiceUnavailable):
            async for _ in stream:
                pass
    await service_is_back(node)
    assert await answer(node, job) == before
    assert vault_pids(node) == [vault]
    await node.client.end_session("tenant", "kept")


async def test_the_service_does_not_outlive_an_attention_process(node: RealNode) -> None:
    """The links' memory is its own; all begin anew. (There are such processes on a GPU alone.)"""
    assert node.controller.compute.service
    pid = node.controller.compute.service._handle.pid
    stream = await node.client.generate("tenant", OpenJob(PROMPT), ENDLESS)
    await anext(stream)
    node.controller.compute._attention_ended()
    with pytest.raises(ServiceUnavailable):
        async for _ in stream:
            pass
    await service_is_back(node)
    assert node.controller.compute.service._handle.pid != pid


async def test_a_killed_vault_fails_its_requests_and_no_other(node: RealNode) -> None:
    alone = await answer(node, private(TEXT, "other"), ENDLESS)
    other = asyncio.create_task(answer(node, private(TEXT, "other", keep=True), ENDLESS))
    while not vault_pids(node):
        await asyncio.sleep(0.005)
    before = set(vault_pids(node))
    lost = await node.client.generate("tenant", private("Another text", "lost"), ENDLESS)
    await anext(lost)
    [pid] = set(vault_pids(node)) - before
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(VaultLost):
        async for _ in lost:
            pass
    assert await other == alone
    assert await answer(node, private(TEXT, "lost"), ENDLESS) == alone
    await node.client.end_session("tenant", "other")


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
async def test_a_vault_that_stops_answering_is_timed_out_and_others_go_on(node: RealNode, level: str) -> None:
    alone = await answer(node, private(TEXT, "other"), ENDLESS)
    silent = await node.client.generate("tenant", private("Another text", "silent", level=level), ENDLESS)
    await anext(silent)
    [pid] = vault_pids(node)
    os.kill(pid, signal.SIGSTOP)
    assert await answer(node, private(TEXT, "other"), ENDLESS) == alone
    with pytest.raises(VaultLost):
        async for _ in silent:
            pass
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_a_killed_forkserver_takes_all_with_it_and_all_comes_back(node: RealNode) -> None:
    before = await answer(node, private(TEXT, "a"))
    stream = await node.client.generate("tenant", private(TEXT, "b"), ENDLESS)
    await anext(stream)
    forkserver = node.controller.compute._forkserver
    assert forkserver is not None and forkserver._handle.pid is not None
    os.kill(forkserver._handle.pid, signal.SIGKILL)
    with pytest.raises(ServiceUnavailable):
        async for _ in stream:
            pass
    await service_is_back(node)
    assert await answer(node, private(TEXT, "a")) == before


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quiet(tiny: ModelFolder) -> AsyncIterator[tuple[RealNode, set[psutil.Process]]]:
    """A node of its own for those who look at all its processes, and what ran before it. The last of them closes it."""
    others = set(psutil.Process().children(recursive=True))
    node = await RealNode.start(tiny, afresh=True, spare_vaults=0)
    yield node, others
    await node.close()


async def test_nothing_of_a_request_is_visible_from_outside(quiet: tuple[RealNode, set[psutil.Process]]) -> None:
    """Arguments of the processes hold no settings and no prompt; no core of theirs would be written."""
    node, others = quiet
    stream = await node.client.generate("tenant", private(TEXT, "a", keep=True), ENDLESS)
    await anext(stream)
    ours = set(psutil.Process().children(recursive=True)) - others
    assert len(ours) >= 3  # fork server, service, the session's vault
    names = sorted(Path(f"/proc/{process.pid}/comm").read_text().strip() for process in ours)
    assert names == ["cl-forkserver", "cl-keeper", "cl-service", "cl-vault"]
    for process in ours:
        role = Path(f"/proc/{process.pid}/comm").read_text().strip().removeprefix("cl-")
        words = " ".join(process.cmdline()).split()
        if role in ("service", "vault"):  # forked: their parent's command line would name another
            assert words == ["cloister", role]
        else:
            assert words[1:4] == ["-P", "-m", "cloister.forkserver"] and len(words) == 5
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)
    await stream.aclose()


async def test_closing_ends_every_process_and_open_requests(quiet: tuple[RealNode, set[psutil.Process]]) -> None:
    node, others = quiet
    stream = await node.client.generate("tenant", private(TEXT, "b", keep=True), ENDLESS)
    processes = set(psutil.Process().children(recursive=True)) - others
    assert len(processes) >= 3  # fork server, service, the sessions' vaults
    await node.controller.close()
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not [one for one in alive if lives(one)]
    with pytest.raises(ServiceUnavailable):
        while True:
            await anext(stream)


async def test_a_broken_model_is_a_typed_error_and_no_process_stays(tiny: ModelFolder, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny.path / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not safetensors.")
    others = set(psutil.Process().children(recursive=True))
    with pytest.raises(ModelCorrupt):
        await RealNode.start(ModelFolder("broken", tmp_path, {}), afresh=True)
    assert not set(psutil.Process().children(recursive=True)) - others
