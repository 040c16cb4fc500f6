"""A vault without its sandbox: a forked process that holds a prompt's keys and values and answers a link."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from cloister.compute.base import LinkAsker
from cloister.compute.cpu.link import CpuAnswerer
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Chunk, Layout, lay_out
from cloister.link.memory import LinkMemory
from cloister.models.decoder import Decoder

BLOCKS = 64


@contextmanager
def vault_of(
    decoder: Decoder,
    link: LinkMemory,
    prompts: list[tuple[list[int], int]],
    then: Callable[[LinkMemory], None] | None = None,
) -> Iterator[int]:
    """Fork a process that prefills the prompts (tokens, public) and answers for them in slots 0, 1, …; its pid."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answerer = _serve(decoder, link, prompts)
            os.write(tell, b"!")
            if then is not None:
                then(link)
            while True:
                signal.pause()
                assert answerer.verdict == ""
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(ready, 1) == b"!", "the stand-in vault died"
    os.close(ready)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _serve(decoder: Decoder, link: LinkMemory, prompts: list[tuple[list[int], int]]) -> CpuAnswerer:
    cache = HostCache(decoder.cache_shape, BLOCKS, decoder.kernels.dtype)
    kernels = decoder.kernels
    assert isinstance(kernels, NativeKernels)
    answerer = CpuAnswerer(kernels.library, decoder, cache, link.shape, *link.vault_descriptors)
    free = list(range(BLOCKS))
    for slot, (tokens, public) in enumerate(prompts):
        layout = Layout(prompt=len(tokens), public=public)
        blocks = [free.pop() for _ in range(layout.blocks(len(tokens)))]
        decoder.hidden(lay_out([Chunk(tokens, 0, blocks, layout)], decoder.queries_per_kv_head), cache)
        private = blocks[layout.blocks(public) :]
        rotation = len(tokens) if decoder.relative else 0
        answerer.expose(slot, private, start=public, end=len(tokens), rotation=rotation)
    answerer.start()
    return answerer


def hidden_of(decoder: Decoder, cache: HostCache, chunks: list[Chunk], asker: LinkAsker | None = None) -> torch.Tensor:
    return decoder.hidden(lay_out(chunks, decoder.queries_per_kv_head), cache, asker).clone()
