"""Why the service is sealed: whoever carries the first layer's contributions out of it can read the prompt.

At layer 0 keys and values depend on nothing but a token and its position. So a contribution (A, m, γ) over a prompt is
a sum of known vectors, one per (token, position) pair, and which of them are in the sum is a linear system: every query
adds heads · (dim + 1) equations. Nothing here is secret but the prompt; the attack succeeds, and this test says so.
"""

from __future__ import annotations

import torch

from cloister.compute.reference import part_of
from tests.models.architectures import CONFIGS, random_model

PROMPT_TOKENS = 3
STEPS = 36


def test_contributions_of_the_first_layer_betray_the_prompt() -> None:
    config = CONFIGS["llama"]
    model = random_model(config)
    layer = model.model.layers[0]
    dim, heads, kv_heads = layer.self_attn.head_dim, config.num_attention_heads, config.num_key_value_heads
    turned = _rotary(model, PROMPT_TOKENS + STEPS, dim)

    def projected(tokens: torch.Tensor, what: str) -> torch.Tensor:
        """[heads, tokens, dim]: of a token alone, as everything at layer 0 is."""
        hidden = layer.input_layernorm(model.model.embed_tokens(tokens))
        rows = getattr(layer.self_attn, f"{what}_proj")(hidden).double()
        return rows.view(len(tokens), -1, dim).transpose(0, 1)

    with torch.no_grad():
        generator = torch.Generator().manual_seed(7)
        prompt = torch.randint(config.vocab_size, (PROMPT_TOKENS,), generator=generator)
        answer = torch.randint(config.vocab_size, (STEPS,), generator=generator)
        queries = turned(projected(answer, "q"), torch.arange(PROMPT_TOKENS, PROMPT_TOKENS + STEPS)) * dim**-0.5
        queries = queries.reshape(kv_heads, heads // kv_heads * STEPS, dim)

        # What a vault answers, in the link's precision: all that the attack gets to see of the prompt.
        seen = part_of(queries, turned(projected(prompt, "k"), torch.arange(PROMPT_TOKENS)), projected(prompt, "v"))
        attended, top, total = (one.float().double() for one in (seen.attended, seen.top, seen.total))
        mass = (total * top.exp()).unsqueeze(-1)
        sums = torch.cat((mass, mass * attended), -1)

        # What each token of the vocabulary would have contributed at each position.
        words = torch.arange(config.vocab_size)
        values = torch.cat((torch.ones(kv_heads, len(words), 1), projected(words, "v")), -1)
        columns = []
        for position in range(PROMPT_TOKENS):
            keys = turned(projected(words, "k"), torch.full_like(words, position))
            weight = (queries @ keys.transpose(1, 2)).exp()
            columns.append(torch.einsum("hqw,hwd->hqdw", weight, values).flatten(0, 2))
        system, target = torch.cat(columns, 1), sums.flatten()
        scale = mass.expand_as(sums).flatten()
        there = torch.linalg.lstsq(system / scale[:, None], target / scale, driver="gelsd").solution
        found = there.view(PROMPT_TOKENS, -1).argmax(-1)
    assert found.tolist() == prompt.tolist()


def _rotary(model: object, positions: int, dim: int):  # type: ignore[no-untyped-def]
    cosine, sine = model.model.rotary_emb(torch.zeros(1, dtype=torch.float64), torch.arange(positions)[None])  # type: ignore[attr-defined]

    def turned(rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        one, other = rows.chunk(2, -1)
        return rows * cosine[0, at] + torch.cat((-other, one), -1) * sine[0, at]

    return turned
