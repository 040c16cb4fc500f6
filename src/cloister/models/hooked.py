"""Any transformers decoder-only model with rotary positions, its own code untouched, through the attention hook.

The model's own forward runs; its linear layers are replaced by packed ones and its attention by ours over the paged
cache. Models with matrices anywhere else (fused experts, convolutions) are refused: their products would not be
batch-invariant. torch's elementwise loops treat the last few elements of a tensor differently, so one spare row always
comes last: no request's row is ever in that tail.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, PretrainedConfig
from transformers.initialization import no_init_weights

from cloister.compute.base import CacheShape, Device, Kernels, KVCache, LinkAsker, Step
from cloister.compute.layer import Packed
from cloister.compute.layout import Batch
from cloister.errors import ModelUnsupported
from cloister.models.decoder import Decoder, Parts, misshapen
from cloister.models.fused import check_rotary, head_dim

UNSUPPORTED_ATTENTION = ("softcap", "s_aux", "sinks")


class PackedLinear(nn.Module):
    """nn.Linear on the kernels; leading dimensions are flattened into rows."""

    def __init__(self, packed: Packed, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels
        self._packed = packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return self._kernels.linear(rows, self._packed).view(*x.shape[:-1], -1)


class HookedDecoder(Decoder):
    """A transformers model whose attention and products are ours."""

    def __init__(self, config: PretrainedConfig, parts: Parts, device: Device, max_context: int) -> None:
        check_rotary(config)
        self.device = device
        self.max_context = max_context
        self.vocabulary = int(config.vocab_size)
        self._step: Step | None = None
        hook = f"cloister-{id(self)}"
        AttentionInterface.register(hook, self._attend)
        AttentionMaskInterface.register(hook, lambda *_, **__: None)
        self._model = _assembled(copy.deepcopy(config), parts, device.kernels)
        self._model.set_attn_implementation(hook)
        self._head = self._model.get_output_embeddings()
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        self.cache_shape = CacheShape(int(config.num_hidden_layers), kv_heads, head_dim(config))
        self.queries_per_kv_head = heads // kv_heads
        # The model tells these with its first step.
        self.scales, self.windows = [0.0] * self.cache_shape.layers, [0] * self.cache_shape.layers

    @torch.inference_mode()
    def hidden(self, batch: Batch, cache: KVCache, asker: LinkAsker | None = None) -> torch.Tensor:
        self._step = Step(batch, cache, asker=asker)
        spare = torch.zeros(1, dtype=torch.int64)
        tokens, positions = torch.cat((batch.tokens, spare)), torch.cat((batch.positions.long(), spare))
        try:
            out = self._model.base_model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        finally:
            self._step = None
            tokens.zero_()
        hidden: torch.Tensor = out.last_hidden_state[0, : batch.rows]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(hidden)
        return logits

    def _attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        step = self._step
        assert step is not None
        for name in UNSUPPORTED_ATTENTION:
            if others.get(name) is not None:
                raise ModelUnsupported(f"Attention with '{name}' is not supported yet.")
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        q, k, v = (tensor[0].transpose(0, 1)[: step.batch.rows] for tensor in (query, key, value))
        self.kernels.store(k, v, layer, step.batch, step.cache)
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        window = sliding_window or 0
        self.scales[layer], self.windows[layer] = scale, window
        attended = self.kernels.attention(q.contiguous(), layer, step, scale, window)
        spare = attended.new_zeros(1, attended.shape[1])
        return torch.cat((attended, spare)).view(1, step.batch.rows + 1, q.shape[1], -1), None


def _assembled(config: PretrainedConfig, parts: Parts, kernels: Kernels) -> Any:
    """The model on its parts: products for its linear layers, tensors for what is left (norms, embeddings)."""
    with no_init_weights(), _parameters_without_memory():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval().requires_grad_(False)
    model.tie_weights()
    stored = _stored_names(model, parts)
    _check_matrices(model)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            biases = [] if module.bias is None else [stored[f"{path}.bias"]]
            packed = parts.product([stored[f"{path}.weight"]], biases)
            if (packed.columns, packed.k) != module.weight.shape:
                raise misshapen(f"{path}.weight")
            model.set_submodule(path, PackedLinear(packed, kernels))
            continue
        for name, parameter in list(module.named_parameters(path, recurse=False)):
            found = parts.tensor(stored[name])
            if found.shape != parameter.shape:
                raise misshapen(name)
            setattr(module, name.rpartition(".")[2], nn.Parameter(found, requires_grad=False))
    kept = set(model.state_dict()) - {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in kept:
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, parts.tensor(name))
    if unknown := parts.leftover() - set(stored):
        raise ModelUnsupported(f"The model's weights hold '{min(unknown)}', which its architecture does not know.")
    return model.float()


@contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """Modules made here have real buffers but only shapes of parameters, whose values come as parts."""
    register = nn.Module.register_parameter

    def register_shape(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = register_shape  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _stored_names(model: nn.Module, parts: Parts) -> dict[str, str]:
    """For every parameter, the name it is stored under: tied ones share the first of their names that exists."""
    shared: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    stored = {}
    for names in shared.values():
        stored.update(dict.fromkeys(names, next(filter(parts.has, names), names[0])))
    return stored


def _check_matrices(model: nn.Module) -> None:
    known = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.Linear)}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and id(parameter) not in known:
            raise ModelUnsupported(f"'{name}' is a matrix outside a linear layer; this architecture is not served yet.")
