"""Any transformers decoder-only model, its own forward untouched, with packed linear layers and our paged attention.
One spare row comes last: torch's elementwise loops treat a tensor's last few elements differently. oneDNN is off: it
writes machine code for every new shape, which a sealed process may not, and its results depend on the shape."""

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Given

from cloister.compute.base import CacheShape, Device, KVCache, LinkAsker, Step
from cloister.compute.layout import BLOCK_TOKENS, Batch, Chunk, lay_out
from cloister.models.assembly import Rows, assembled
from cloister.models.decoder import Decoder, Parts, refused, refusing
from cloister.models.fused import check_rotary, head_dim
from cloister.models.windows import Window, Windows

HARMLESS = frozenset(
    ("dropout", "is_causal", "position_ids", "cache_position", "output_attentions", "use_cache", "sliding_window")
)  # off, or said by positions and masks
DIFFERENCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}  # largest relative difference of logits; a bf16 cache rounds


class HookedDecoder(Decoder):
    def __init__(self, config: PretrainedConfig, parts: Parts, device: Device, max_context: int) -> None:
        if not device.survives_fork:
            raise refused(str(config.model_type), "this device computes Llama, Mistral, Qwen2 and Qwen3 only")
        self.architecture = str(config.model_type)
        self.device = device
        self.max_context = max_context
        self._config = copy.deepcopy(config)
        self._step: Step | None = None
        self._called: list[int] = []
        self._rows = Rows(self.architecture)
        self._hook = f"cloister-{id(self)}"
        AttentionInterface.register(self._hook, self._attend)
        AttentionMaskInterface.register(self._hook, Windows().mask)
        with refusing(self.architecture, "its layers have no attention, or not all the same"):
            shape = config.get_text_config()
            self.vocabulary = int(shape.vocab_size)
            heads = int(shape.num_attention_heads)
            kv_heads = int(getattr(shape, "num_key_value_heads", None) or heads)
            self.cache_shape = CacheShape(int(shape.num_hidden_layers), kv_heads, head_dim(shape))
            self.queries_per_kv_head = heads // kv_heads
        with refusing(self.architecture):
            check_rotary(shape)
            self._model = assembled(self._config, parts, device.kernels, self._rows)
            self._install(self._hook)
            self._head = _without_base(self._model)
        # The model tells these with its first step.
        self.scales, self.windows = [0.0] * self.cache_shape.layers, [0] * self.cache_shape.layers

    @torch.inference_mode()
    def hidden(self, batch: Batch, cache: KVCache, asker: LinkAsker | None = None) -> torch.Tensor:
        self._step, self._called = Step(batch, cache, asker=asker), []
        spare = torch.zeros(1, dtype=torch.int64)
        tokens, positions = torch.cat((batch.tokens, spare)), torch.cat((batch.positions.long(), spare))
        try:
            with _without_onednn(), self._rows.expecting(batch.rows + 1):
                out = self._model.base_model(**_inputs(tokens, positions))
        finally:
            self._step = None
            tokens.zero_()
        if self._called != list(range(self.cache_shape.layers)):
            raise refused(self.architecture, "our attention is not called once for each layer")
        hidden: torch.Tensor = out.last_hidden_state[0, : batch.rows]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = len(hidden)
        with _without_onednn(), self._rows.expecting(rows + 1):
            given = torch.cat((hidden, hidden.new_zeros(1, hidden.shape[1])))
            logits: torch.Tensor = self._head(inputs_embeds=given[None], use_cache=False).logits[0, :rows]
        return logits

    @torch.inference_mode()
    def check(self) -> None:
        with refusing(self.architecture):
            ours, own = self._logits_of_both(self._some_tokens(2 * BLOCK_TOKENS + 5))
        if ours.shape != own.shape or not bool(
            ((ours - own).norm(dim=-1) <= DIFFERENCE[self.kernels.dtype] * own.norm(dim=-1)).all()
        ):
            raise refused(self.architecture, "its logits are others with our attention than with its own")

    def _some_tokens(self, count: int) -> torch.Tensor:
        """Without the padding token, which models skip when they count positions."""
        padding = self._config.get_text_config().pad_token_id
        tokens = (token for token in range(1, self.vocabulary) if token != padding)
        few = list(itertools.islice(tokens, 97))
        return torch.tensor([few[place * 7 % len(few)] for place in range(min(count, self.max_context))])

    def _logits_of_both(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's own attention finds positions and mask itself."""
        cache = self.device.cache(self.cache_shape, 3)
        chunk = Chunk(tokens.tolist(), 0, range(3))
        ours = self.logits(self.hidden(lay_out([chunk], self.queries_per_kv_head), cache))
        self._install("eager")
        try:
            with _without_onednn(), self._rows.expecting(len(tokens)):
                own: torch.Tensor = self._model(input_ids=tokens[None], use_cache=False).logits[0]
        finally:
            self._install(self._hook)
        return ours, own

    def _install(self, attention: str) -> None:
        """transformers only warns where it cannot."""
        self._model.set_attn_implementation(attention)
        models = [part for part in self._model.modules() if hasattr(part, "set_attn_implementation")]
        if any(part.config._attn_implementation != attention for part in models):
            raise refused(self.architecture, "transformers cannot replace its attention")

    def _attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        step, shape = self._step, self.cache_shape
        assert step is not None
        for name, given in others.items():
            if name not in HARMLESS and given is not None:
                raise refused(self.architecture, f"its attention takes '{name}', which ours does not")
        if not isinstance(attention_mask, Window):
            raise refused(self.architecture, "it makes the masks of its attention itself")
        if (window := attention_mask.length) is None:
            raise refused(self.architecture, "its attention is neither causal nor a sliding window")
        rows, layer = step.batch.rows, int(module.layer_idx)  # type: ignore[arg-type]
        wanted = (1, shape.kv_heads, rows + 1, shape.dim)
        if key.shape != wanted or value.shape != wanted or query.shape != (1, self.heads, rows + 1, shape.dim):
            raise refused(self.architecture, "the heads of its queries, keys and values are not all of one width")
        self._called.append(layer)
        q, k, v = (tensor[0].transpose(0, 1)[:rows] for tensor in (query, key, value))
        self.kernels.store(k, v, layer, step.batch, step.cache)
        scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
        self.scales[layer], self.windows[layer] = scale, window
        attended = self.kernels.attention(q.contiguous(), layer, step, scale, window)
        spare = attended.new_zeros(1, attended.shape[1])
        return torch.cat((attended, spare)).view(1, rows + 1, q.shape[1], -1), None


def _inputs(tokens: torch.Tensor, positions: torch.Tensor) -> dict[str, Any]:
    """With a mask of ones transformers does not look for several sequences itself."""
    ones = torch.ones(1, len(tokens), dtype=torch.int64)
    return {"input_ids": tokens[None], "position_ids": positions[None], "attention_mask": ones, "use_cache": False}


class _Given(nn.Module):
    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Given:
        return Given(last_hidden_state=inputs_embeds)


def _without_base(model: Any) -> Any:
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: _Given()}
    return head


@contextmanager
def _without_onednn() -> Iterator[None]:
    onednn: Any = torch.backends.mkldnn
    was, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = was
