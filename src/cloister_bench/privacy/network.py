"""A Llama model's layers as its adversary computes them: batches of guesses, any layer, after a known beginning."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

Heads = tuple[torch.Tensor, torch.Tensor]  # keys and values [batch, kv heads, positions, dim]
Past = list[Heads]  # of each layer that was run


class Projected(NamedTuple):
    q: torch.Tensor  # turned and scaled, [batch, heads, positions, dim]
    k: torch.Tensor
    v: torch.Tensor


class Network:
    """Of a transformers Llama in fp32. `bf16` rounds where a node does: before each product, and in its KV cache."""

    def __init__(self, model: Any, *, bf16: bool = False) -> None:
        self._model, self._bf16 = model.model, bf16
        self.embeddings: torch.Tensor = model.model.embed_tokens.weight.detach()
        self.layers, self._head = len(model.model.layers), model.lm_head.weight.detach()
        self.vocabulary, config = len(self.embeddings), model.config
        self._dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().float() if self._bf16 else x

    def _linear(self, x: torch.Tensor, module: Any) -> torch.Tensor:
        return functional.linear(self._rounded(x), module.weight.detach())

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embeddings[tokens]

    def project(self, x: torch.Tensor, layer: int, start: int) -> Projected:
        """What a layer's attention is given for positions from `start` on."""
        attention, (batch, count, _) = self._model.layers[layer].self_attn, x.shape
        normed = self._model.layers[layer].input_layernorm(x)

        def heads(module: Any) -> torch.Tensor:
            return self._linear(normed, module).view(batch, count, -1, self._dim).transpose(1, 2)

        places = torch.arange(start, start + count)
        keys, values = self.turned(heads(attention.k_proj), places), heads(attention.v_proj)
        queries = self.turned(heads(attention.q_proj), places) * self._dim**-0.5
        return Projected(queries, self._rounded(keys), self._rounded(values))

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """Layer 0 after its attention, of rows: what its MLP adds is added."""
        layer = self._model.layers[0]
        normed, mlp = layer.post_attention_layernorm(x), layer.mlp
        gate = functional.silu(self._linear(normed, mlp.gate_proj))
        return x + self._linear(gate * self._linear(normed, mlp.up_proj), mlp.down_proj)

    def attention_out(self, attended: torch.Tensor) -> torch.Tensor:
        return self._linear(attended, self._model.layers[0].self_attn.o_proj)

    def turned(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """[…, positions, dim] by their positions' angles; a negative position turns back."""
        angles: tuple[torch.Tensor, torch.Tensor] = self._model.rotary_emb(rows, places[None])
        one, other = rows.chunk(2, -1)
        return rows * angles[0] + torch.cat((-other, one), -1) * angles[1]

    def run(self, x: torch.Tensor, until: int, past: Past | None = None) -> tuple[torch.Tensor, list[Projected]]:
        """Through the layers below `until`; what each was given, after what `past` has of the beginning."""
        start = past[0][0].shape[2] if past else 0
        count, given = x.shape[1], []
        seen = torch.ones(count, start + count, dtype=torch.bool).tril(start)
        for number in range(until):
            layer, parts = self._model.layers[number], self.project(x, number, start)
            keys, values = parts.k, parts.v
            if past:
                before = (one.expand(len(x), -1, -1, -1) for one in past[number])
                keys, values = (torch.cat(pair, 2) for pair in zip(before, (keys, values), strict=True))
            attended = functional.scaled_dot_product_attention(
                parts.q, keys, values, attn_mask=seen, scale=1.0, enable_gqa=True
            )
            x = x + self._linear(attended.transpose(1, 2).flatten(2), layer.self_attn.o_proj)
            normed, mlp = layer.post_attention_layernorm(x), layer.mlp
            gate = functional.silu(self._linear(normed, mlp.gate_proj))
            x = x + self._linear(gate * self._linear(normed, mlp.up_proj), mlp.down_proj)
            given.append(parts)
        return x, given

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self._rounded(self._model.norm(x)), self._head)


def joined(past: Past | None, given: Sequence[Projected]) -> Past:
    if not past:
        return [(one.k, one.v) for one in given]
    pairs = zip(past, given, strict=True)
    return [(torch.cat((keys, one.k), 2), torch.cat((values, one.v), 2)) for (keys, values), one in pairs]


def continued(network: Network, prompt: Sequence[int], count: int) -> list[int]:
    """The greedy answer."""
    answer: list[int] = []
    past: Past | None = None
    given = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            x, parts = network.run(network.embed(torch.tensor([given])), network.layers, past)
            past = joined(past, parts)
            given = [int(network.logits(x[0, -1]).argmax())]
            answer += given
    return answer
