"""Weights of a shape, drawn at random: they mean nothing, and take as long as others."""

from collections.abc import Iterator, Mapping

import torch

from cloister.models.source import PlainConfig


class RandomWeights(Mapping[str, torch.Tensor]):
    """Each is made on the GPU when it is looked up."""

    def __init__(self, config: PlainConfig) -> None:
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        ends = ("model.embed_tokens", *(() if config.tie_word_embeddings else ("lm_head",)))
        self.shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (hidden,)}
        self.shapes |= {f"{name}.weight": (config.vocab_size, hidden) for name in ends}
        for number in range(config.num_hidden_layers):
            self.shapes |= {f"model.layers.{number}.{name}.weight": size for name, size in layer.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        size = self.shapes[name]
        if len(size) == 1:
            return torch.rand(size, device="cuda") + 0.5
        drawn: torch.Tensor = torch.randn(size, device="cuda") * float(size[1]) ** -0.5
        return drawn.bfloat16()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __len__(self) -> int:
        return len(self.shapes)
