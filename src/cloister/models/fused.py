"""The Llama family, three kernel calls a layer. A tied embedding reads the packed output; angles as transformers'."""

from typing import Any

import torch

from cloister.compute.base import CacheShape, Device, KVCache, LinkAsker, Step
from cloister.compute.layer import Angles, Beginning, Gate, Layer, LayerShape, Packed
from cloister.compute.layout import Batch
from cloister.errors import ModelCorrupt, ModelUnsupported, SetupError
from cloister.models.decoder import Decoder, Parts, check_leftover, refused
from cloister.models.source import Config, head_dim

GATES: dict[str, Gate] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
LENGTH_DEPENDENT = ("dynamic", "longrope")


def check_rotary(config: Config) -> None:
    """Refuse scalings whose angles depend on the longest neighbour in the batch: they would leave a trace."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    for kind in kinds:
        if kind.get("rope_type") in LENGTH_DEPENDENT:
            message = f"Rotary scaling '{kind['rope_type']}' depends on other requests' lengths and is not served."
            hint = "Choose a model with default, linear, yarn or llama3 scaling."
            raise ModelUnsupported(message, hint=hint)


class Rotary:
    """A table of angles for positions 0 .. max_context-1."""

    def __init__(self, config: Config, dim: int, max_context: int, device: Device) -> None:
        check_rotary(config)
        kind = config.rope_parameters["rope_type"]
        if kind == "default":
            exponents = torch.arange(0, dim, 2, dtype=torch.float) / dim
            frequencies, scaling = 1.0 / (config.rope_parameters["rope_theta"] ** exponents), 1.0
        else:
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config)
            if 2 * len(frequencies) != dim:
                raise refused(config.model_type, "only a part of its heads is rotated")
        angles = torch.arange(max_context)[:, None].float() * frequencies.float()
        both_halves = torch.cat((angles, angles), dim=-1)
        cosine, sine = device.place(both_halves.cos()), device.place(both_halves.sin())
        self._cosine, self._sine, self.width = cosine * scaling, sine * scaling, cosine.shape[1]
        # Rotating further starts from a position that was scaled already.
        self._rotation_cosine, self._rotation_sine = (cosine, sine) if scaling != 1.0 else (self._cosine, self._sine)

    def at(self, positions: torch.Tensor, rotations: torch.Tensor) -> Angles:
        further = self.rotation(rotations)
        return Angles(self._cosine[positions], self._sine[positions], *further)

    @property
    def all(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cosine, self._sine

    def rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines that rotate a rotated vector further by these distances."""
        return self._rotation_cosine[positions], self._rotation_sine[positions]


class FusedDecoder(Decoder):
    relative = True

    def __init__(self, config: Config, parts: Parts, device: Device, max_context: int) -> None:
        self.architecture = config.model_type
        self.device = device
        self.max_context = max_context
        self.vocabulary, self.width = int(config.vocab_size), int(config.hidden_size)
        self._rotary = Rotary(config, head_dim(config), max_context, device)
        self._epsilon = float(config.rms_norm_eps)
        self._layers = [self._layer(config, parts, index) for index in range(config.num_hidden_layers)]
        self._norm = device.place(parts.tensor("model.norm.weight"))
        tied = bool(config.tie_word_embeddings)
        self._head = device.place_product(parts.joined("model.embed_tokens" if tied else "lm_head"))
        self._embedding = self._head if tied else device.place_product(parts.joined("model.embed_tokens"))
        for packed in (self._head, self._embedding):
            _check(packed, self.vocabulary, config.hidden_size)
        check_leftover(parts, self.architecture)
        shape = self._layers[0].shape
        self.cache_shape = CacheShape(len(self._layers), shape.kv_heads, shape.dim)
        self.queries_per_kv_head = shape.heads // shape.kv_heads
        self.scales = [layer.shape.scale for layer in self._layers]
        self.windows = [layer.shape.window for layer in self._layers]

    def hidden(self, batch: Batch, cache: KVCache, asker: LinkAsker | None = None) -> torch.Tensor:
        x = self.kernels.embed(self._embedding, batch.tokens)
        step = Step(batch, cache, self._rotary.at(batch.positions, batch.rotations), asker)
        if self.beginning is None or not batch.remotes:
            self.kernels.run_layers(self._layers, x, step)
            return x
        here, places = batch.here()
        if here.rows:
            rows, angles = x[places], self._rotary.at(here.positions, here.rotations)
            self.kernels.run_layers(self.beginning.layers, rows, Step(here, cache, angles))
            x[places] = rows
            rows.zero_()
        self.kernels.take_starts(x, step)
        self.kernels.run_layers(self._behind, x, step)
        return x

    def keep_private(self, layers: int) -> None:
        """One hidden state must fit where a link has room for the contribution to one row of attention."""
        room = self.heads * (self.cache_shape.dim + 2)
        if not self.kernels.takes_starts or self._embedding.k > room or self.device.partition_refusal(self):
            super().keep_private(layers)
        if layers >= len(self._layers):
            raise SetupError(
                f"The model has {len(self._layers)} layers: fewer can be private.", hint="Lower --private-layers."
            )
        self.private_layers, self._behind = layers, self._layers[layers:]
        self.beginning = Beginning(self._embedding, self._layers[:layers], *self._rotary.all)

    def rotation(self, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        cosine, sine = self._rotary.rotation(torch.tensor([distance]))
        return cosine[0], sine[0]

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(hidden, self._norm, self._epsilon)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.kernels.linear(self.normed(hidden), self._head)

    def _layer(self, config: Config, parts: Parts, index: int) -> Layer:
        name = f"model.layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        heads = (config.num_attention_heads, config.num_key_value_heads, head_dim(config))
        scale, window = head_dim(config) ** -0.5, _window(config, index)
        shape = LayerShape(*heads, self._rotary.width, self._epsilon, scale, window)
        normed = config.model_type == "qwen3"
        place, product = self.device.place, self.device.place_product
        _check_biases(config, parts, attention, mlp)
        layer = Layer(
            index=index,
            shape=shape,
            attention_norm=place(parts.tensor(f"{name}.input_layernorm.weight")),
            qkv=product(parts.joined(*(f"{attention}.{part}_proj" for part in "qkv"))),
            q_norm=place(parts.tensor(f"{attention}.q_norm.weight")) if normed else None,
            k_norm=place(parts.tensor(f"{attention}.k_norm.weight")) if normed else None,
            out=product(parts.joined(f"{attention}.o_proj")),
            mlp_norm=place(parts.tensor(f"{name}.post_attention_layernorm.weight")),
            gate_up=product(parts.joined(f"{mlp}.gate_proj", f"{mlp}.up_proj", gate=GATES[config.hidden_act])),
            down=product(parts.joined(f"{mlp}.down_proj")),
        )
        hidden, inner = config.hidden_size, config.intermediate_size
        _check(layer.qkv, (shape.heads + 2 * shape.kv_heads) * shape.dim, hidden)
        _check(layer.out, hidden, shape.heads * shape.dim)
        _check(layer.gate_up, 2 * inner, hidden)
        _check(layer.down, hidden, inner)
        return layer


def _check(packed: Packed, columns: int, k: int) -> None:
    """The kernels read and write by the configuration's sizes, so a weight must have exactly these."""
    if (packed.columns, packed.k) != (columns, k):
        message = f"A weight is {packed.columns} × {packed.k} where the model's configuration says {columns} × {k}."
        hint = "Fetch or convert the model again."
        raise ModelCorrupt(message, hint=hint)


def _check_biases(config: Config, parts: Parts, attention: str, mlp: str) -> None:
    """A bias that transformers' code for the architecture would not add is not added here, nor one left out."""
    everywhere = bool(getattr(config, "attention_bias", False)) and config.model_type in ("llama", "qwen3")
    qkv, out = everywhere or config.model_type == "qwen2", everywhere
    inner = bool(getattr(config, "mlp_bias", False)) and config.model_type == "llama"
    wanted = {f"{attention}.{part}_proj": qkv for part in "qkv"} | {f"{attention}.o_proj": out}
    wanted |= {f"{mlp}.{part}_proj": inner for part in ("gate", "up", "down")}
    for layer, has_bias in wanted.items():
        if parts.has(f"{layer}.bias") != has_bias:
            why = f"its weights {'lack' if has_bias else 'hold'} '{layer}.bias', against its configuration"
            raise refused(config.model_type, why)


def _window(config: Any, index: int) -> int:
    """How many positions back a layer looks; 0 means all."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds and kinds[index] not in ("sliding_attention", "full_attention"):
        raise refused(config.model_type, f"its layers are of the kind '{kinds[index]}'")
    if not window or (kinds and kinds[index] != "sliding_attention"):
        return 0
    return int(window) if getattr(config, "use_sliding_window", True) else 0
