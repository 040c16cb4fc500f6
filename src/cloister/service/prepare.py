"""Builds the service over a loaded model: KV cache, prefix cache and engine, before the process is sealed."""

import torch

from cloister.config import EngineSettings
from cloister.engine.graph_runner import runner_for
from cloister.engine.paged import PagedEngine
from cloister.engine.rehearsal import rehearse_device
from cloister.engine.runner import reserve_cache
from cloister.messages.generation import Ready
from cloister.models.decoder import Decoder
from cloister.prefix.radix import RadixCache
from cloister.service.process import Service


def prepare(decoder: Decoder, settings: EngineSettings, weights: int | None = None) -> Service:
    """`weights`: the device's memory with the weights, for other processes."""
    torch.set_num_threads(1)  # the kernels have their own threads; two thread pools would compete for the cores
    refused = decoder.device.partition_refusal(decoder)
    asker = None if refused else decoder.device.asker(decoder, settings.link_deadline_ms)
    cache = reserve_cache(decoder, settings.kv_cache_mib)
    runner = runner_for(decoder, cache, asker)
    if not decoder.device.survives_fork:
        rehearse_device(runner, settings)
    engine = PagedEngine(runner, settings, RadixCache())
    ready = Ready(
        vocabulary=runner.vocabulary,
        max_context=engine.max_context,
        kv_blocks=runner.num_blocks,
        block_tokens=runner.block_tokens,
        kernels=decoder.kernels.name,
        width=runner.width,
    )
    return Service(engine, ready, lambda: decoder.device.lost, weights)
