"""Every name of vLLM that Cloister touches (`TOUCHED`), and the only code that touches them. Version: `VERSION`."""

import logging
import os
import secrets
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import torch

from cloister.compute.base import CacheShape
from cloister.compute.cpu.native import MAX_DIM, MAX_QUERIES, NativeKernels
from cloister.config import EngineSettings
from cloister.errors import SetupError
from cloister.messages.types import TokenLogprob
from cloister_vllm import VERSION
from cloister_vllm.arguments import arguments_of
from cloister_vllm.core import Core, Job, Made
from cloister_vllm.partitions import Asking, Partitions, Rows

MOST_LOGPROBS = 20
WORST = -9999.0  # in place of minus infinity
TOUCHED: dict[str, tuple[str, ...]] = {
    "vllm.engine.arg_utils:EngineArgs": (
        *("model", "skip_tokenizer_init", "generation_config", "max_logprobs", "disable_log_stats", "seed"),
        "use_tqdm_on_load",
        *("async_scheduling", "dtype", "distributed_executor_backend", "enable_prefix_caching", "enforce_eager"),
        *("kv_cache_memory_bytes", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "create_engine_config"),
        *("block_size", "scheduling_policy", "tensor_parallel_size"),
    ),
    "vllm.sampling_params:SamplingParams": (
        *("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
        *("presence_penalty", "frequency_penalty", "logprobs", "logit_bias", "stop_token_ids", "ignore_eos"),
        *("detokenize", "skip_clone"),
    ),
    "vllm.v1.engine:EngineCoreRequest": (
        *("request_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "arrival_time"),
        *("lora_request", "cache_salt", "data_parallel_rank", "priority"),
    ),
    "vllm.v1.engine:EngineCoreOutput": ("request_id", "new_token_ids", "new_logprobs", "finish_reason"),
    "vllm.v1.engine:FinishReason": ("STOP", "LENGTH", "ABORT", "ERROR"),
    "vllm.v1.engine.core_client:InprocClient": ("add_request", "abort_requests", "get_output", "engine_core"),
    "vllm.v1.executor:Executor": ("get_class",),
    "vllm.v1.outputs:LogprobsLists": ("logprob_token_ids", "logprobs"),
    "vllm.config:VllmConfig": ("model_config", "cache_config", "parallel_config"),
    "vllm.config:ModelConfig": ("max_model_len", "get_vocab_size"),
    "vllm.config:ParallelConfig": ("world_size",),
    "vllm.config:get_layers_from_vllm_config": (),
    "vllm.model_executor.layers.attention:Attention": ("layer_name", "impl"),
    "vllm.v1.attention.backend:CommonAttentionMetadata": (
        *("num_reqs", "num_actual_tokens", "query_start_loc", "seq_lens", "block_table_tensor"),
    ),
    "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend": ("get_impl_cls", "get_builder_cls"),
    "vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadataBuilder": ("build",),
    "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl": (
        *("forward", "do_kv_cache_update", "scale", "sliding_window", "alibi_slopes", "logits_soft_cap", "sinks"),
        *("attn_type", "kv_sharing_target_layer_name", "num_heads", "num_kv_heads", "head_size"),
    ),
    "vllm.v1.attention.backends:cpu_attn": ("CPUAttentionBackend",),
    "vllm.v1.core.kv_cache_utils:generate_block_hash_extra_keys": (),
    "vllm.v1.core:kv_cache_utils": ("generate_block_hash_extra_keys",),
    "vllm.v1.engine.core:EngineCore": ("model_executor",),
    "vllm.v1.executor.uniproc_executor:UniProcExecutor": ("driver_worker",),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": ("input_batch", "requests"),
    "vllm.v1.worker.gpu_input_batch:CachedRequestState": ("generator",),
    "vllm.v1.worker.worker_base:WorkerWrapperBase": ("worker",),
    "vllm.v1.worker.gpu_input_batch:InputBatch": ("req_ids", "generators"),
    "vllm.config:CacheConfig": ("num_gpu_blocks", "block_size"),
}
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CONFIGURE_LOGGING": "0",  # its lines go to our filter
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "none",  # a list of names: no plugin is called so
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


def open_core(path: Path, settings: EngineSettings) -> "VllmCore":
    """SetupError for another version than ours, or a model that vLLM refuses."""
    threads = max(1, settings.cores // settings.tensor_parallel)
    os.environ.update(VARIABLES, OMP_NUM_THREADS=str(threads))
    logging.getLogger("vllm").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    from importlib.metadata import version

    if (found := version("vllm-cpu")) != VERSION:
        raise SetupError(f"vLLM is {found} there, and Cloister knows {VERSION}.", hint="`make vllm` installs it.")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core_client import InprocClient
    from vllm.v1.executor import Executor

    arguments = EngineArgs(
        model=str(path),
        skip_tokenizer_init=True,
        generation_config="vllm",
        max_logprobs=MOST_LOGPROBS,
        disable_log_stats=True,
        async_scheduling=False,
        use_tqdm_on_load=False,
        seed=0,
        **arguments_of(settings),
    )
    try:
        config = arguments.create_engine_config()
    except ValueError as wrong:  # of pydantic's, which has each reason apart
        reasons = [str(one["msg"]) for one in getattr(wrong, "errors", list)()] or [str(wrong)]
        raise SetupError(f"vLLM refuses this model or these settings: {' '.join(reasons)}") from None
    asking = AskingLayers()
    _replace_classes(asking)
    return VllmCore(InprocClient(config, Executor.get_class(config), log_stats=False), config, asking, settings)


class Restarting(torch.Generator):
    """A request's seed. Where a step takes no token, as between parts of a prompt, vLLM moves the generator back by an
    offset, which only CUDA's have: such steps are before the first token, so it starts again."""

    @classmethod
    def like(cls, plain: torch.Generator) -> "Restarting":
        kept = cls()
        kept.set_state(plain.get_state())
        return kept

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        return self.manual_seed(self.initial_seed())


@dataclass
class AskingLayers:
    """What our classes in vLLM share. `partitions` is None where the model's attention cannot be partitioned."""

    partitions: Partitions | None = None
    runner: Any = None  # vLLM's, whose batch has the ids of its requests in order
    now: Asking | None = None
    blocks_of: dict[str, tuple[int, str]] = field(default_factory=dict)  # by request: public tokens, the others' name

    def begin(self, common: Any) -> None:
        """For each step, before its first layer."""
        self.now = None
        if self.runner is None:
            return
        batch = self.runner.input_batch
        for index, plain in batch.generators.items():
            if type(plain) is torch.Generator:
                kept = Restarting.like(plain)
                batch.generators[index] = self.runner.requests[batch.req_ids[index]].generator = kept
        if not self.partitions:
            return
        starts, lengths = common.query_start_loc.tolist(), common.seq_lens.tolist()
        size = self.partitions.block_tokens
        rows = []
        for at, name in enumerate(batch.req_ids[: common.num_reqs]):
            if int(name) in self.partitions:
                count, held = starts[at + 1] - starts[at], -(-lengths[at] // size)
                blocks = common.block_table_tensor[at, :held].tolist()
                rows.append(Rows(int(name), starts[at], count, lengths[at] - count, blocks))
        self.now = self.partitions.begin(rows, common.num_actual_tokens)


def _replace_classes(asking: AskingLayers) -> None:
    """vLLM's CPU backend hands out ours from now on; and blocks' hashes have the names of `blocks_of`."""
    from vllm.v1.attention.backends import cpu_attn
    from vllm.v1.core import kv_cache_utils

    class Builder(cpu_attn.CPUAttentionMetadataBuilder):  # type: ignore[misc]
        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            asking.begin(common_attn_metadata)
            return super().build(common_prefix_len, common_attn_metadata, fast_build)

    class Attention(cpu_attn.CPUAttentionBackendImpl):  # type: ignore[misc]
        def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any) -> None:
            if (now := asking.now) is not None:
                if now.whole:
                    return
                kept = torch.ones(len(slot_mapping), dtype=torch.bool)
                kept[now.places] = False
                key, value, slot_mapping = key[: len(kept)][kept], value[: len(kept)][kept], slot_mapping[kept]
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

        def forward(self, layer: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> Any:
            if (now := asking.now) is None or asking.partitions is None:
                return super().forward(layer, query, key, value, *rest, **more)
            out = more["output"] if "output" in more else rest[2]
            if not now.whole:
                super().forward(layer, query, key, value, *rest, **more)
            index, window = _index_of(layer.layer_name), max(self.sliding_window, 0)
            asking.partitions.attend(now, index, (query, key, value), out, self.scale, window)
            return out

    def extra_keys(request: Any, start: int, end: int, mm_index: int) -> Any:
        keys, mm_index = plain_keys(request, start, end, mm_index)
        public, name = asking.blocks_of.get(request.request_id, (0, ""))
        if name and start == public:
            keys = (*(keys or ()), ("cloister", name))
        return keys, mm_index

    plain_keys = kv_cache_utils.generate_block_hash_extra_keys
    kv_cache_utils.generate_block_hash_extra_keys = extra_keys
    cpu_attn.CPUAttentionBackend.get_impl_cls = staticmethod(lambda: Attention)
    cpu_attn.CPUAttentionBackend.get_builder_cls = staticmethod(lambda: Builder)


def _index_of(layer_name: str) -> int:
    return next(int(part) for part in layer_name.split(".") if part.isdecimal())


def _partitions(config: Any, blocks: int, block_tokens: int, settings: EngineSettings) -> Partitions | None:
    """None unless all layers have one shape of plain attention over their own keys, in this process."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention

    layers = get_layers_from_vllm_config(config, Attention)
    indices = sorted(_index_of(name) for name in layers)
    kinds = {
        (one.impl.num_heads, one.impl.num_kv_heads, one.impl.head_size, one.impl.attn_type, *_unusual(one.impl))
        for one in layers.values()
    }
    if len(kinds) != 1 or indices != list(range(len(layers))) or config.parallel_config.world_size != 1:
        return None
    [(heads, kv_heads, dim, kind, *unusual)] = kinds
    if any(unusual) or kind != "decoder" or dim % 16 or dim > MAX_DIM or heads // kv_heads > MAX_QUERIES:
        return None
    kernels = NativeKernels(torch.bfloat16 if settings.dtype == "bf16" else torch.float32, settings.cores)
    kernels.take_short_turns()
    shape = CacheShape(len(layers), kv_heads, dim)
    return Partitions(shape, heads, blocks, block_tokens, kernels, settings.link_deadline_ms)


def _unusual(attention: Any) -> tuple[bool, ...]:
    return (
        attention.alibi_slopes is not None,
        bool(attention.logits_soft_cap),
        attention.sinks is not None,
        attention.kv_sharing_target_layer_name is not None,
    )


class VllmCore(Core):
    """The engine core in this process, without a tokenizer, a renderer or a server."""

    def __init__(self, client: Any, config: Any, asking: AskingLayers, settings: EngineSettings) -> None:
        from vllm.sampling_params import SamplingParams as Params
        from vllm.v1.engine import EngineCoreRequest, FinishReason

        self._client, self._params, self._request, self._asking = client, Params, EngineCoreRequest, asking
        self._ended = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORT: "cancelled"}
        self.vocabulary = int(config.model_config.get_vocab_size())
        self.max_context = int(config.model_config.max_model_len)
        self.blocks, self.block_tokens = int(config.cache_config.num_gpu_blocks), int(config.cache_config.block_size)
        asking.partitions = _partitions(config, self.blocks, self.block_tokens, settings)
        self._longest_seeded = settings.chunk_tokens if settings.tensor_parallel > 1 else self.max_context
        if settings.tensor_parallel == 1:
            asking.runner = client.engine_core.model_executor.driver_worker.worker.model_runner
        self.asks_vaults = asking.partitions is not None

    def add(self, job: Job) -> None:
        """No client's salt, transfer or extra argument has a way here."""
        params, most = job.params, job.most
        if params.known_seed is not None and len(job.prompt) > self._longest_seeded:
            raise ValueError("a seed cannot be kept over the steps of a long prompt")
        wanted = self._params(
            max_tokens=most,
            min_tokens=min(max(0, params.min_tokens - (job.remote is not None)), most),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            seed=params.known_seed,
            logprobs=params.logprobs,
            logit_bias=dict(params.logit_bias) or None,
            stop_token_ids=list(params.stop_tokens),
            ignore_eos=True,  # `stop_tokens` has the model's own where they count
            detokenize=False,
            skip_clone=True,
        )
        name = str(job.number)
        if job.remote is not None and self._asking.partitions is not None:
            self._asking.partitions.expect(job.number, job.remote)
        elif job.own:
            self._asking.blocks_of[name] = job.public, job.own
        self._client.add_request(
            self._request(
                request_id=name,
                prompt_token_ids=list(job.prompt),
                mm_features=None,
                sampling_params=wanted,
                pooling_params=None,
                arrival_time=time(),
                lora_request=None,
                cache_salt=None if job.own else secrets.token_hex(16),  # no other request finds its blocks
                data_parallel_rank=None,
                priority=0 if job.remote is not None else 1,  # vLLM preempts the highest number
            )
        )

    def abort(self, number: int) -> None:
        self._client.abort_requests([str(number)])
        self._forget(number)

    def step(self) -> list[Made]:
        made = [self._made(output) for output in self._client.get_output().outputs]
        for each in made:
            if each.finish is not None:
                self._forget(each.number)
        return made

    def attach(self, link: int, question: int, answer: int) -> None:
        if self._asking.partitions is None:
            super().attach(link, question, answer)
        else:
            self._asking.partitions.asker.attach(link, question, answer)

    def detach(self, link: int) -> None:
        if self._asking.partitions is not None:
            self._asking.partitions.asker.detach(link)

    def broken(self) -> dict[int, str]:
        partitions, now = self._asking.partitions, self._asking.now
        return {} if partitions is None or now is None else partitions.asker.broken()

    def _forget(self, number: int) -> None:
        self._asking.blocks_of.pop(str(number), None)
        if self._asking.partitions is not None:
            self._asking.partitions.forget(number)

    def _made(self, output: Any) -> Made:
        tokens = tuple(int(token) for token in output.new_token_ids)
        scores = None
        if (lists := output.new_logprobs) is not None:
            rows = zip(lists.logprob_token_ids.tolist(), lists.logprobs.tolist(), strict=True)
            scores = tuple(_scored(ids, values) for ids, values in rows)
        finish = None if output.finish_reason is None else self._ended.get(output.finish_reason, "failed")
        return Made(int(output.request_id), tokens, scores, finish)


def _scored(ids: list[int], values: list[float]) -> TokenLogprob:
    """The first column is the chosen token's, the others are the best, best first."""
    own, *best = (max(value, WORST) for value in values)
    return TokenLogprob(own, tuple(zip(ids[1:], best, strict=True)))
