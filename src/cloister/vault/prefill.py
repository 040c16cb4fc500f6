"""Prefill of one prompt, a chunk at a time, and the answer's first token (Petridish §4, step 2).

Beyond the KV cache it needs the activations of one chunk at one layer. It is the engine's own arithmetic and the
engine's own sampler: rows do not depend on their company, so the first token is the one the engine would choose.
"""

from __future__ import annotations

import torch

from cloister.engine.sampler import Sampler
from cloister.engine.sequence import Sequence
from cloister.kernels.batch import Run, lay_out
from cloister.kernels.cache import KVCache
from cloister.messages.generation import TokenLogprob
from cloister.models.decoder import Decoder


class Prefill:
    """Runs prompts through the decoder into the vault's cache."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self._decoder = decoder
        self._cache = cache
        self._sampler = Sampler(decoder.vocabulary, decoder.kernels.draw_rows)

    def compute(self, sequence: Sequence, tokens: int) -> torch.Tensor:
        """Compute the prompt's next tokens, so many at most; the last one's hidden state."""
        start = sequence.computed
        end = min(start + tokens, sequence.prompt_length)
        layout = sequence.layout
        run = Run(sequence.tokens[start:end], start, sequence.blocks[: layout.blocks(end)], layout)
        hidden = self._decoder.hidden(lay_out([run], self._decoder.queries_per_kv_head), self._cache)
        sequence.computed = end
        return hidden[-1:].clone()

    def choose_first(self, sequence: Sequence, hidden: torch.Tensor) -> TokenLogprob | None:
        """Append the answer's first token to the sequence, from the hidden state of its prompt's last one."""
        sampled = self._sampler.sample(self._decoder.logits(hidden), [sequence], [0])
        sequence.append(sampled.tokens[0])
        return sampled.logprobs[0]
