"""Every name of vLLM that Cloister touches (`TOUCHED`), and the only code that touches them. Version: `VERSION`."""

import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Any

from cloister.config import EngineSettings
from cloister.errors import SetupError
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister_vllm import VERSION
from cloister_vllm.arguments import arguments_of
from cloister_vllm.core import Core, Made

MOST_LOGPROBS = 20
WORST = -9999.0  # in place of minus infinity
TOUCHED: dict[str, tuple[str, ...]] = {
    "vllm.engine.arg_utils:EngineArgs": (
        *("model", "skip_tokenizer_init", "generation_config", "max_logprobs", "disable_log_stats", "seed"),
        "use_tqdm_on_load",
        *("async_scheduling", "dtype", "distributed_executor_backend", "enable_prefix_caching", "enforce_eager"),
        *("kv_cache_memory_bytes", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "create_engine_config"),
    ),
    "vllm.sampling_params:SamplingParams": (
        *("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
        *("presence_penalty", "frequency_penalty", "logprobs", "logit_bias", "stop_token_ids", "ignore_eos"),
        *("detokenize", "skip_clone"),
    ),
    "vllm.v1.engine:EngineCoreRequest": (
        *("request_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "arrival_time"),
        *("lora_request", "cache_salt", "data_parallel_rank"),
    ),
    "vllm.v1.engine:EngineCoreOutput": ("request_id", "new_token_ids", "new_logprobs", "finish_reason"),
    "vllm.v1.engine:FinishReason": ("STOP", "LENGTH", "ABORT", "ERROR"),
    "vllm.v1.engine.core_client:InprocClient": ("add_request", "abort_requests", "get_output", "engine_core"),
    "vllm.v1.executor:Executor": ("get_class",),
    "vllm.v1.outputs:LogprobsLists": ("logprob_token_ids", "logprobs"),
    "vllm.config:VllmConfig": ("model_config", "cache_config"),
    "vllm.config:ModelConfig": ("max_model_len", "get_vocab_size"),
    "vllm.config:CacheConfig": ("num_gpu_blocks", "block_size"),
}
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CONFIGURE_LOGGING": "0",  # its lines go to our filter
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "none",  # a list of names: no plugin is called so
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


def open_core(path: Path, settings: EngineSettings) -> "VllmCore":
    """SetupError for another version than ours, or a model that vLLM refuses."""
    os.environ.update(VARIABLES, OMP_NUM_THREADS=str(settings.cores))
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
    except ValueError as wrong:
        raise SetupError(f"vLLM refuses this model or these settings ({type(wrong).__name__}).") from None
    return VllmCore(InprocClient(config, Executor.get_class(config), log_stats=False), config)


class VllmCore(Core):
    """The engine core in this process, without a tokenizer, a renderer or a server."""

    def __init__(self, client: Any, config: Any) -> None:
        from vllm.sampling_params import SamplingParams as Params
        from vllm.v1.engine import EngineCoreRequest, FinishReason

        self._client, self._params, self._request = client, Params, EngineCoreRequest
        self._ended = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORT: "cancelled"}
        self.vocabulary = int(config.model_config.get_vocab_size())
        self.max_context = int(config.model_config.max_model_len)
        self.blocks, self.block_tokens = int(config.cache_config.num_gpu_blocks), int(config.cache_config.block_size)

    def add(self, number: int, prompt: Sequence[int], params: SamplingParams, most: int) -> None:
        """No client's salt, transfer or extra argument has a way here."""
        wanted = self._params(
            max_tokens=most,
            min_tokens=min(params.min_tokens, most),
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
        self._client.add_request(
            self._request(
                request_id=str(number),
                prompt_token_ids=list(prompt),
                mm_features=None,
                sampling_params=wanted,
                pooling_params=None,
                arrival_time=time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
        )

    def abort(self, number: int) -> None:
        self._client.abort_requests([str(number)])

    def step(self) -> list[Made]:
        return [self._made(output) for output in self._client.get_output().outputs]

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
