"""The real service process: it serves, it is left, it dies, it comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from cloister.config import EngineSettings
from cloister.errors import ModelCorrupt, PromptTooLong, QueueFull, ServiceUnavailable
from cloister.messages.generation import SamplingParams, Stats, Tokens
from cloister.models.source import ModelFolder
from cloister.service.handle import ServiceHandle

PROMPT = tuple(range(5, 45))
GREEDY = SamplingParams(max_tokens=12, temperature=0)
ENDLESS = SamplingParams(max_tokens=400, temperature=0)


async def answer(
    service: ServiceHandle, prompt: tuple[int, ...] = PROMPT, params: SamplingParams = GREEDY
) -> list[int]:
    stream = await service.generate("tenant", prompt, params)
    return [token async for part in stream for token in part.tokens]


async def drained(service: ServiceHandle) -> Stats:
    """The stats once nothing runs any more."""
    while True:
        stats = await service.stats()
        if not stats.running and not stats.waiting:
            return stats
        await asyncio.sleep(0.01)


async def test_greedy_tokens_are_transformers_own(service: ServiceHandle, tiny_folder: ModelFolder) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folder.path, dtype=torch.float32)
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert await answer(service) == expected[0, len(PROMPT) :].tolist()


async def test_many_at_once_get_what_each_gets_alone(service: ServiceHandle) -> None:
    prompts = [tuple(range(start, start + 3 + 7 * start % 50)) for start in range(1, 21)]
    alone = [await answer(service, prompt) for prompt in prompts]
    together = await asyncio.gather(*(answer(service, prompt) for prompt in prompts))
    assert together == alone
    stats = await drained(service)
    assert stats.blocks_free == stats.blocks_total


async def test_leaving_frees_what_was_held(service: ServiceHandle) -> None:
    streams = [await service.generate("tenant", PROMPT, ENDLESS) for _ in range(6)]
    await anext(streams[0])
    for stream in streams:  # most of them before anything was read
        await stream.aclose()
    stats = await asyncio.wait_for(drained(service), 20)
    assert stats.blocks_free == stats.blocks_total
    assert stats.output_tokens < ENDLESS.max_tokens  # they did not just run to their ends, unheard


async def test_being_cancelled_while_queueing_leaves_nothing(service: ServiceHandle) -> None:
    tasks = [asyncio.create_task(service.generate("tenant", PROMPT, ENDLESS)) for _ in range(5)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    stats = await asyncio.wait_for(drained(service), 20)
    assert stats.blocks_free == stats.blocks_total
    assert stats.output_tokens < ENDLESS.max_tokens


async def test_refusals_keep_their_type(service: ServiceHandle, tiny_folder: ModelFolder) -> None:
    with pytest.raises(PromptTooLong):
        await service.generate("tenant", tuple([1] * 600), GREEDY)
    small = EngineSettings(
        dtype="fp32", kv_cache_mib=1, threads=1, max_waiting=1, max_waiting_per_tenant=1, max_running=1
    )
    narrow = await ServiceHandle.start(tiny_folder, small)
    try:
        with pytest.raises(QueueFull) as full:
            await asyncio.gather(*(narrow.generate("tenant", PROMPT, ENDLESS) for _ in range(8)))
        assert full.value.retry_after >= 1
    finally:
        await narrow.close()


async def test_a_killed_service_fails_its_requests_at_once_and_comes_back(service: ServiceHandle) -> None:
    before = await answer(service)
    stream = await service.generate("tenant", PROMPT, ENDLESS)
    await anext(stream)
    assert service.pid
    os.kill(service.pid, signal.SIGKILL)
    with pytest.raises(ServiceUnavailable):
        async for _ in stream:
            pass
    with pytest.raises(ServiceUnavailable):
        await service.generate("tenant", PROMPT, GREEDY)
    async with asyncio.timeout(60):
        while not service.up:
            await asyncio.sleep(0.05)
    assert await answer(service) == before


async def test_closing_ends_the_process_and_open_requests(tiny_folder: ModelFolder) -> None:
    handle = await ServiceHandle.start(tiny_folder, EngineSettings(kv_cache_mib=2, threads=1))
    stream = await handle.generate("tenant", PROMPT, ENDLESS)
    pid = handle.pid
    assert pid
    await handle.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ServiceUnavailable):
        while True:
            await anext(stream)


async def test_a_broken_model_is_a_typed_error_and_no_process_stays(tiny_folder: ModelFolder, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder.path / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not safetensors.")
    with pytest.raises(ModelCorrupt):
        await ServiceHandle.start(ModelFolder("broken", tmp_path, {}), EngineSettings())
    assert not [p for p in psutil.Process().children() if "cloister.service" in p.cmdline()]


async def test_nothing_of_the_request_is_visible_from_outside(service: ServiceHandle) -> None:
    """Arguments and environment of the process hold no settings, no prompt; its core would not be written."""
    assert service.pid
    process = psutil.Process(service.pid)
    assert process.cmdline()[1:3] == ["-m", "cloister.service"] and len(process.cmdline()) == 4
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)


async def test_waiting_messages_are_read_as_one(service: ServiceHandle) -> None:
    stream = await service.generate("tenant", PROMPT, GREEDY)
    await drained(service)
    parts: list[Tokens] = [part async for part in stream]
    assert len(parts) == 1 and len(parts[0].tokens) == 12 and parts[0].finish == "length"
