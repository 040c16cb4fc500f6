"""vLLM's arguments by Cloister's settings: the same that evidence shows and that the engine gets."""

from cloister.config import EngineSettings
from cloister.messages.types import SamplingParams

MIB = 1 << 20
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
Argument = str | int | bool


BLOCK_TOKENS = 32  # vLLM's kernels on a CPU take multiples of it


def arguments_of(settings: EngineSettings) -> dict[str, Argument]:
    """Without the model's folder. Nothing is compiled."""
    given: dict[str, Argument] = {
        "dtype": DTYPES[settings.dtype],
        "block_size": BLOCK_TOKENS,
        "distributed_executor_backend": "uni" if settings.tensor_parallel == 1 else "mp",
        "enable_prefix_caching": True,  # blocks are found by names that `reuse` gives
        "enforce_eager": True,
        "kv_cache_memory_bytes": settings.kv_cache_mib * MIB,
        "max_num_batched_tokens": max(settings.chunk_tokens, settings.max_running),
        "max_num_seqs": settings.max_running,
        "scheduling_policy": "priority",  # what asks vaults is preempted last
        "tensor_parallel_size": settings.tensor_parallel,
    }
    if settings.max_context:
        given["max_model_len"] = settings.max_context
    return given


def unserved(params: SamplingParams) -> str | None:
    """The field of a request that is not served yet."""
    asked = {
        "input": params.embed,
        "response_format": bool(params.grammar),
        "prompt_logprobs": params.prompt_logprobs is not None,
        "max_tokens": params.max_tokens == 0,
    }
    return next((name for name, is_asked in asked.items() if is_asked), None)
