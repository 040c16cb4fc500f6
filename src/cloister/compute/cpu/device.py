"""The CPU behind the device contract: the native kernels, their cache in host memory, and their ends of a link."""

from __future__ import annotations

from cloister.compute.base import AttentionShape, CacheShape, Device, KVCache
from cloister.compute.cpu.link import CpuAnswerer, CpuAsker
from cloister.compute.cpu.native import MAX_QUERIES, NativeKernels
from cloister.compute.host_cache import HostCache, on_host
from cloister.errors import SetupError
from cloister.link.shape import LinkShape


class CpuDevice(Device):
    """Computes with the C library."""

    def __init__(self, kernels: NativeKernels) -> None:
        self.kernels: NativeKernels = kernels

    def cache(self, shape: CacheShape, blocks: int) -> HostCache:
        return HostCache(shape, blocks, self.kernels.dtype)

    def partition_refusal(self, model: AttentionShape) -> str:
        if model.queries_per_kv_head > MAX_QUERIES:
            return f"More than {MAX_QUERIES} query heads share one KV head."
        if len(model.scales) != model.cache_shape.layers:
            return "The scales of the model's attention are not known."
        return ""

    def asker(self, model: AttentionShape, patience_ms: int) -> CpuAsker:
        return CpuAsker(_link_shape(model), patience_ms)

    def answerer(self, model: AttentionShape, cache: KVCache, question: int, answer: int) -> CpuAnswerer:
        if why := self.partition_refusal(model):
            raise SetupError(f"This model's attention cannot be partitioned. {why}")
        return CpuAnswerer(self.kernels.library, model, on_host(cache), _link_shape(model), question, answer)


def _link_shape(model: AttentionShape) -> LinkShape:
    return LinkShape(heads=model.heads, dim=model.cache_shape.dim, layers=model.cache_shape.layers)
