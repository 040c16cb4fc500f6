"""What a request's parameters do to its logits before a choice: penalties for tokens seen, and logit_bias.

Sparse: only the tokens concerned are touched. In this order, for every token of the prompt or the output:
repetition penalty (a positive logit is divided by it, a negative one multiplied), then for every token of the output
minus frequency_penalty × its count, minus presence_penalty; and last, plus logit_bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cloister.messages.generation import SamplingParams


class Adjustments:
    """One sequence's penalties and bias, kept up to date token by token on the device of the logits."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], outputs: Sequence[int], device: torch.device
    ) -> None:
        self._params = params
        self._penalises = penalises(params)
        seen = dict.fromkeys(prompt) if self._penalises else {}
        self._place: dict[int, int] = {token: place for place, token in enumerate(seen)}
        room = max(64, 2 * len(self._place))
        self._tokens = torch.zeros(room, dtype=torch.int64, device=device)
        self._counts = torch.zeros(room, dtype=torch.float32, device=device)
        self._tokens[: len(self._place)] = torch.tensor(list(self._place), dtype=torch.int64, device=device)
        self._biased = torch.tensor(list(params.logit_bias), dtype=torch.int64, device=device)
        self._bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=device)
        for token in outputs:
            self.note(token)

    def note(self, token: int) -> None:
        """A token was generated."""
        if not self._penalises:
            return
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            self._tokens = torch.cat((self._tokens, torch.zeros_like(self._tokens)))
            self._counts = torch.cat((self._counts, torch.zeros_like(self._counts)))
        self._tokens[place] = token
        self._counts[place] += 1.0

    def apply(self, row: torch.Tensor) -> None:
        """Change one row of logits in place."""
        params = self._params
        if self._penalises:
            tokens, counts = self._tokens[: len(self._place)], self._counts[: len(self._place)]
            logits = row[tokens]
            if params.repetition_penalty != 1.0:
                penalty = params.repetition_penalty
                logits = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = logits - counts * params.frequency_penalty
            logits = logits - (counts > 0) * params.presence_penalty
            row[tokens] = logits
        if params.logit_bias:
            row[self._biased] += self._bias


def penalises(params: SamplingParams) -> bool:
    """Whether tokens seen matter to these parameters."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def adjusts(params: SamplingParams) -> bool:
    """Whether these parameters change logits at all, before temperature."""
    return bool(params.logit_bias) or penalises(params)
