"""A transformers decoder, forward untouched, with packed layers, paged attention, and a spare row: torch treats last
elements differently. oneDNN is off: a sealed process may write no machine code, and it depends on the shape."""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Given

from cloister.compute.base import CacheShape, Device, KVCache, LinkAsker, Step
from cloister.compute.layout import BLOCK_TOKENS, Batch, Chunk, lay_out
from cloister.models.assembly import Rows, assembled
from cloister.models.decoder import Decoder, Parts, refused, refusing
from cloister.models.fused import check_rotary
from cloister.models.source import head_dim

HARMLESS = frozenset(
    ("dropout", "is_causal", "position_ids", "cache_position", "output_attentions", "use_cache", "sliding_window")
)  # off, or said by positions and masks
DIFFERENCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}  # largest relative difference of logits; a bf16 cache rounds

FAR = 1 << 20  # beyond any window: a window this long sees all

Sees = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class Window:
    """In place of a mask: how many positions back a layer looks, 0 for all; None if neither causal nor sliding."""

    length: int | None


class Windows:
    """Takes the place of transformers' mask makers; each kind of mask is looked at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Window] = {}

    def mask(self, *, mask_function: Callable[..., torch.Tensor], local_size: int | None = None, **_: Any) -> Window:
        key = (_identity(mask_function), local_size)
        if key not in self._known:
            self._known[key] = Window(_length_of(_positions(mask_function)))
        return self._known[key]


def _identity(value: Any) -> Any:
    """A mask function's code and what it encloses, without tensors, which hold padding: windows share code."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, tuple | list):
        return tuple(map(_identity, value))
    cells = getattr(value, "__closure__", None) or ()
    return (getattr(value, "__code__", value), *(_identity(cell.cell_contents) for cell in cells))


def _positions(mask_function: Callable[..., torch.Tensor]) -> Sees:
    zero = torch.tensor(0)
    return lambda at, seen: bool(mask_function(zero, zero, torch.tensor(at), torch.tensor(seen)))


def _length_of(sees: Sees) -> int | None:
    """0 where all is seen; None where the mask has another shape."""
    if sees(FAR, 0):
        window = 0
    else:  # the least distance at which nothing is seen
        window, beyond = 0, FAR
        while beyond - window > 1:
            middle = (window + beyond) // 2
            window, beyond = (middle, beyond) if sees(FAR, FAR - middle) else (window, middle)
        window = beyond
    # Chunks look like windows from some positions and not from others.
    for at in (0, 1, 7, FAR // 3, FAR, FAR + 1, FAR + window // 2):
        edges = {0, 1, at // 2, at - window, at - window + 1, at - 1, at, at + 1, at + 2}
        for seen in (edge for edge in edges if edge >= 0):
            if sees(at, seen) != (seen <= at and (window == 0 or seen > at - window)):
                return None
    return window


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
            self.vocabulary, self.width = int(shape.vocab_size), int(shape.hidden_size)
            heads = int(shape.num_attention_heads)
            kv_heads = int(getattr(shape, "num_key_value_heads", None) or heads)
            self.cache_shape = CacheShape(int(shape.num_hidden_layers), kv_heads, head_dim(shape))
            self.queries_per_kv_head = heads // kv_heads
        with refusing(self.architecture):
            check_rotary(shape)
            self._model = assembled(self._config, parts, device.kernels, self._rows)
            self._install(self._hook)
            self._head = copy.copy(self._model)
            self._head._modules = {**self._model._modules, self._model.base_model_prefix: _Given()}
        # The model tells these with its first step.
        self.scales, self.windows = [0.0] * self.cache_shape.layers, [0] * self.cache_shape.layers

    @torch.inference_mode()
    def hidden(self, batch: Batch, cache: KVCache, asker: LinkAsker | None = None) -> torch.Tensor:
        self._step, self._called = Step(batch, cache, asker=asker), []
        spare = torch.zeros(1, dtype=torch.int64)
        tokens, positions = torch.cat((batch.tokens, spare)), torch.cat((batch.positions.long(), spare))
        try:
            with _without_onednn(), self._rows.expecting(batch.rows + 1):
                # With a mask of ones transformers does not look for several sequences itself.
                given = {"position_ids": positions[None], "attention_mask": torch.ones_like(tokens)[None]}
                out = self._model.base_model(input_ids=tokens[None], **given, use_cache=False)
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
            # Without the padding token, which models skip when they count positions.
            padding = self._config.get_text_config().pad_token_id
            few = list(itertools.islice((token for token in range(1, self.vocabulary) if token != padding), 97))
            count = min(2 * BLOCK_TOKENS + 5, self.max_context)
            ours, own = self._logits_of_both(torch.tensor([few[place * 7 % len(few)] for place in range(count)]))
        most = DIFFERENCE[self.kernels.dtype] * own.norm(dim=-1)
        if ours.shape != own.shape or not bool(((ours - own).norm(dim=-1) <= most).all()):
            raise refused(self.architecture, "its logits are others with our attention than with its own")

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


class _Given(nn.Module):
    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Given:
        return Given(last_hidden_state=inputs_embeds)


@contextmanager
def _without_onednn() -> Iterator[None]:
    onednn: Any = torch.backends.mkldnn
    was, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = was
