"""From logits to tokens, for a batch at once: repetition, frequency and presence penalties; logit_bias; greedy, or
temperature, top-k, top-p, min-p, and a draw by the inverse cumulative distribution at u(seed, output index), by rank
where a filter is on, else by token id. Logprobs are of the logits before all of that. A row depends on itself alone,
bit for bit: operations are elementwise or exact. One synchronisation with the device per call."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from cloister.compute.layer import DrawRows, Draws, MaskRow
from cloister.compute.layout import token_tensor
from cloister.engine.logits import Adjustments, adjusts, argmax, columns, draw_rows, measure, padded, report, uniform
from cloister.engine.sequence import Sequence
from cloister.messages.types import TokenLogprob

GREEDY_BELOW = 1e-5  # lower temperatures are 0: dividing by them leaves only the maximum anyway


@dataclass(frozen=True, slots=True)
class Forced:
    """Row first+i of a forced pass predicts the given token targets[i]."""

    first: int
    targets: Rows[int]
    count: int


@dataclass(frozen=True, slots=True)
class Sampled:
    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    forced: list[list[TokenLogprob]]


class Sampler:
    def __init__(self, vocabulary: int, draw: DrawRows | None = None, mask: MaskRow | None = None) -> None:
        """`draw`, `mask`: the kernels' own, if they have any."""
        self._vocabulary = vocabulary
        self._draw_rows, self._mask_row = draw or draw_rows, mask

    def sample(
        self,
        logits: torch.Tensor,
        sequences: list[Sequence],
        at: list[int],
        forced: Rows[Forced] = (),
        ahead: Rows[int] | None = None,
    ) -> Sampled:
        """`ahead`: by how many tokens each row is ahead of its sequence's next; not where there are penalties."""
        rows = padded(logits)
        device = rows.device
        mine = rows if at == list(range(len(rows))) else rows[torch.tensor(at, dtype=torch.int64, device=device)]
        tokens = self._choose(mine, sequences, ahead or [0] * len(sequences))
        reporting = [i for i, sequence in enumerate(sequences) if sequence.params.logprobs is not None]
        if not reporting and not forced:
            sampled: list[int] = tokens.tolist()
            tokens.zero_()
            return Sampled(sampled, [None] * len(sequences), [])
        counts = [sequences[i].params.logprobs or 0 for i in reporting]
        where = [at[i] for i in reporting]
        targets: list[int] = []
        for part in forced:
            counts += [part.count] * len(part.targets)
            where += range(part.first, part.first + len(part.targets))
            targets += part.targets
        places, own = (torch.tensor(each, dtype=torch.int64, device=device) for each in (where, reporting))
        widest = min(max(counts), self._vocabulary)
        width = columns(widest)
        # Both tensors hold token ids, so they are overwritten once they are read.
        chosen = token_tensor([0] * len(reporting) + targets, device)
        both = torch.empty(len(sequences) + len(places) * width, dtype=torch.float64, device=device)
        try:
            torch.index_select(tokens, 0, own, out=chosen[: len(reporting)])
            both[: len(sequences)] = tokens
            measure(rows, places, chosen, widest, both[len(sequences) :].view(-1, width))
            flat: list[float] = both.tolist()
        finally:
            for each in (tokens, chosen, both):
                each.zero_()
        starts = range(len(sequences), len(flat), width)
        reports = (
            report(flat[start : start + width], min(count, widest)) for start, count in zip(starts, counts, strict=True)
        )
        return Sampled(
            tokens=[int(token) for token in flat[: len(sequences)]],
            logprobs=[None if sequence.params.logprobs is None else next(reports) for sequence in sequences],
            forced=[[next(reports) for _ in part.targets] for part in forced],
        )

    def _choose(self, rows: torch.Tensor, sequences: list[Sequence], ahead: Rows[int]) -> torch.Tensor:
        rows = _adjusted(rows, sequences, self._mask_row)
        random = [i for i, sequence in enumerate(sequences) if sequence.params.temperature >= GREEDY_BELOW]
        if not random:
            return argmax(rows)
        if len(random) == len(sequences):
            return self._draw(rows, sequences, ahead)
        tokens = argmax(rows)
        index = torch.tensor(random, dtype=torch.int64, device=rows.device)
        tokens[index] = self._draw(rows[index], [sequences[i] for i in random], [ahead[i] for i in random])
        return tokens

    def _draw(self, rows: torch.Tensor, sequences: list[Sequence], ahead: Rows[int]) -> torch.Tensor:
        params = [sequence.params for sequence in sequences]
        steps = [sequence.generated + more for sequence, more in zip(sequences, ahead, strict=True)]
        how = Draws(
            temperature=[p.temperature for p in params],
            top_k=[p.top_k or rows.shape[-1] for p in params],
            top_p=[p.top_p for p in params],
            min_p=[p.min_p for p in params],
            u=[uniform(p.known_seed, step) for p, step in zip(params, steps, strict=True)],
        )
        return self._draw_rows(rows, how).clamp_(max=self._vocabulary - 1)


def _adjusted(rows: torch.Tensor, sequences: list[Sequence], mask_row: MaskRow | None) -> torch.Tensor:
    """A copy where there are penalties or bias, as logprobs are of the original rows."""
    changed = [i for i, sequence in enumerate(sequences) if adjusts(sequence.params)]
    if not changed:
        return rows
    rows = rows.clone()
    for i in changed:
        sequence = sequences[i]
        output = sequence.output
        if output.adjustments is None:
            prompt, generated = sequence.tokens[: sequence.prompt_length], sequence.tokens[sequence.prompt_length :]
            output.adjustments = Adjustments(sequence.params, prompt, generated, rows.device)
        output.adjustments.apply(rows[i], mask_row)
    return rows
