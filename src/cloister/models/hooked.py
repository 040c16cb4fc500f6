"""Any transformers decoder-only model with rotary positions, its own file untouched, through the attention hook.

The model's own forward runs; its linear layers are replaced by packed ones and its attention by ours over the paged
cache. Models that hold matrices anywhere else (fused experts, convolutions) are refused: their products would not be
batch-invariant. torch's elementwise loops treat the last few elements of a tensor apart, so one spare row always
stands last: no request's row is ever in that tail.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, PretrainedConfig
from transformers.initialization import no_init_weights

from cloister.errors import ModelCorrupt, ModelUnsupported
from cloister.kernels.base import Kernels, Packed
from cloister.kernels.batch import Batch
from cloister.kernels.cache import CacheShape, KVCache
from cloister.models.decoder import Decoder
from cloister.models.rotary import check_rotary

UNSUPPORTED_ATTENTION = ("softcap", "s_aux", "sinks")


class PackedLinear(nn.Module):
    """nn.Linear on the kernels; leading dimensions are flattened into rows."""

    def __init__(self, linear: nn.Linear, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels
        self._packed: Packed = kernels.pack(
            linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return self._kernels.linear(rows, self._packed).view(*x.shape[:-1], -1)


class HookedDecoder(Decoder):
    """A transformers model whose attention and products are ours."""

    def __init__(
        self, config: PretrainedConfig, weights: Mapping[str, torch.Tensor], kernels: Kernels, max_context: int
    ) -> None:
        check_rotary(config)
        self.kernels = kernels
        self.max_context = max_context
        self.vocabulary = int(config.vocab_size)
        self._step: tuple[Batch, KVCache] | None = None
        hook = f"cloister-{id(self)}"
        AttentionInterface.register(hook, self._attend)
        AttentionMaskInterface.register(hook, lambda *_, **__: None)
        self._model = _loaded(copy.deepcopy(config), weights)
        self._model.set_attn_implementation(hook)
        _pack_linears(self._model, kernels)
        self._model.float()  # what is left: norms, embeddings
        self._head = self._model.get_output_embeddings()
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        self.cache_shape = CacheShape(int(config.num_hidden_layers), kv_heads, dim)
        self.queries_per_kv_head = heads // kv_heads

    @torch.inference_mode()
    def hidden(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        self._step = (batch, cache)
        spare = torch.zeros(1, dtype=torch.int64)
        tokens, positions = torch.cat((batch.tokens, spare)), torch.cat((batch.positions.long(), spare))
        try:
            out = self._model.base_model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        finally:
            self._step = None
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
        assert self._step is not None
        for name in UNSUPPORTED_ATTENTION:
            if others.get(name) is not None:
                raise ModelUnsupported(f"Attention with '{name}' is not supported yet.")
        batch, cache = self._step
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        q, k, v = (tensor[0].transpose(0, 1)[: batch.rows] for tensor in (query, key, value))
        self.kernels.store(k, v, layer, batch, cache)
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        attended = self.kernels.attention(q.contiguous(), layer, batch, cache, scale, sliding_window or 0)
        spare = attended.new_zeros(1, attended.shape[1])
        return torch.cat((attended, spare)).view(1, batch.rows + 1, q.shape[1], -1), None


def _loaded(config: PretrainedConfig, weights: Mapping[str, torch.Tensor]) -> Any:
    """The model on the weights as they are: nothing is initialised, copied or widened yet."""
    with no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.eval().requires_grad_(False)
    missing, unexpected = model.load_state_dict(dict(weights), strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if config.tie_word_embeddings else set()
    if lost := set(missing) - tied:
        raise ModelCorrupt(f"The model's weights lack '{min(lost)}'.", hint="Fetch or convert the model again.")
    if unexpected:
        raise ModelUnsupported(f"The model's weights hold '{min(unexpected)}', which its architecture does not know.")
    return model


def _pack_linears(model: nn.Module, kernels: Kernels) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, PackedLinear(child, kernels))
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and id(parameter) not in embeddings:
            raise ModelUnsupported(f"'{name}' is a matrix outside a linear layer; this architecture is not served yet.")
