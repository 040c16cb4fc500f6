"""What is done to rows of logits: penalties and bias, softmax in whole numbers, ranks, logprobs, the draw of a token.

Floating-point sums depend on their order, and the order on the device, the number of rows and the number of threads.
Here each probability becomes an integer weight first; integer sums are exact in every order, so all that follows
(log-sum-exp, top-p mass, the cumulative distribution) is the same bit for bit alone or among neighbours, on any device
whose elementwise operations are functions of the element. Rows are padded to whole vectors, so no row has a ragged end
that another code path would compute. Ranks have one order for everybody: greater first, the lower index first among
equals. Nothing here knows sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cloister.messages.generation import SamplingParams, TokenLogprob

LANES = 128
_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_ROWS_IN_CACHE = 4
SCALE = 2.0**44
"""Weight of a row's maximum. 2**18 tokens of full weight still fit 63 bits; 2**-44 is far below fp32's own error."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_RANKED_FIRST = (64, 1024)


class Adjustments:
    """One sequence's penalties and bias, kept up to date token by token on the device of the logits.

    Sparse: only the tokens concerned are touched. In this order, for every token of the prompt or the output:
    repetition penalty (a positive logit is divided by it, a negative one multiplied), then for every token of the
    output minus frequency_penalty × its count, minus presence_penalty; and last, plus logit_bias.
    """

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


def padded(logits: torch.Tensor) -> torch.Tensor:
    """The rows, contiguous and filled with -inf to a multiple of LANES. No copy where they are so already."""
    ragged = -logits.shape[-1] % LANES
    if ragged:
        return torch.nn.functional.pad(logits, (0, ragged), value=float("-inf"))
    return logits.contiguous()


def argmax(rows: torch.Tensor) -> torch.Tensor:
    """Index of each padded row's maximum, the lowest among equals.

    In two stages, because torch's reduction with indices does not use vector instructions on CPU and amax does.
    """
    count, width = rows.shape
    groups = rows.view(count, width // LANES, LANES)
    best = groups.amax(-1).argmax(-1)
    inside = groups[torch.arange(count, device=rows.device), best].argmax(-1)
    return best * LANES + inside


def best(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` greatest of each padded row, best first: [rows, count].

    A row is looked at in two stages: the best `count` elements lie in the best `count` groups, where a group ranks by
    its maximum and then by its place. (Were an element's group not among them, each of those would hold an element
    ranking before it.)
    """
    height, width = rows.shape
    group = 64 if count <= 32 else 16
    if 4 * count * group > width:
        return _best_of(rows, torch.arange(width, device=rows.device), count)
    maxima = rows.view(height, width // group, group).amax(-1)
    groups = _best_of(maxima, torch.arange(width // group, device=rows.device), count)
    inside = torch.arange(group, device=rows.device)
    indices = (groups.unsqueeze(-1) * group + inside).flatten(1)
    return _best_of(rows.gather(1, indices), indices, count)


def _best_of(values: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
    # torch's topk leaves open which of equal values it takes, so value and index are packed into one integer.
    bits = (values + 0.0).view(torch.int32)  # +0.0: the two zeros are equal
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    packed = (ordered << _INDEX_BITS) | (_INDEX_MASK - indices)
    return _INDEX_MASK - (packed.topk(count).values & _INDEX_MASK)


def relative(rows: torch.Tensor, maximum: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
    """Probability of each token relative to its row's most likely one: in [0, 1], 1 at the maximum."""
    below = rows - maximum
    if temperature is not None:
        below /= temperature
    return below.exp_()


def integer(probabilities: torch.Tensor) -> torch.Tensor:
    """The weights: relative probabilities in units of 2**-44, as int64."""
    return (probabilities * SCALE).long()


def group_size(rows: torch.Tensor) -> int:
    """How many rows to take at a time: all, but on a CPU so few that what is made of them stays in a core's cache."""
    return _ROWS_IN_CACHE if rows.device.type == "cpu" else max(1, len(rows))


def measure(rows: torch.Tensor, at: torch.Tensor, chosen: torch.Tensor, count: int) -> torch.Tensor:
    """What `report` needs of each of the padded rows `at`, on the device, as float64: [len(at), 3 + 2·count].

    Columns: the chosen token's logit, the maximum, the sum of weights, then ids and logits of the `count` best. The
    logits are the model's own, before penalties, bias, temperature or filters. Decoded tokens and tokens of a forced
    pass go through here alike: a replay gives the bits that decoding gave.
    """
    size = group_size(rows)
    groups = [slice(first, first + size) for first in range(0, len(at), size)]
    return torch.cat([_measure(rows[at[group]], chosen[group], count) for group in groups])


def _measure(rows: torch.Tensor, chosen: torch.Tensor, count: int) -> torch.Tensor:
    maximum = rows.amax(-1, keepdim=True)
    total = integer(relative(rows, maximum)).sum(-1, keepdim=True)
    columns = [rows.gather(1, chosen.unsqueeze(-1)), maximum, total]
    if count:
        ids = best(rows, count)
        columns += [ids, rows.gather(1, ids)]
    return torch.cat([column.double() for column in columns], dim=-1)


def report(measured: Sequence[float], count: int) -> TokenLogprob:
    """The message for one row of `measure`, with its `count` best alternatives."""
    chosen, maximum, total = measured[:3]
    log_total = math.log(total / SCALE) if total > 0 else math.nan  # only where the logits were NaN themselves
    widest = (len(measured) - 3) // 2
    ids, logits = measured[3 : 3 + count], measured[3 + widest : 3 + widest + count]
    return TokenLogprob(
        logprob=chosen - maximum - log_total,
        top=tuple((int(token), logit - maximum - log_total) for token, logit in zip(ids, logits, strict=True)),
    )


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits: SplitMix64 (Steele et al., 2014) from a mixed seed, at step `index`.

    Counter-based, so a draw does not depend on the batch, on preemption or on how often it is repeated. Not a secret:
    it serves reproducibility, never cryptography.
    """
    state = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((state + (index + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draw(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The index in each row of integer weights at which the cumulative sum passes the part u of the total."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    mark = (u.unsqueeze(-1) * total.double()).long().minimum(total - 1)
    return torch.searchsorted(cumulative, mark, right=True).squeeze(-1)


@dataclass(frozen=True, slots=True)
class Limits:
    """The filters of some rows, on their device; k is the whole width where top-k is off."""

    k: torch.Tensor
    p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def of(cls, params: list[SamplingParams], width: int, device: torch.device) -> Limits:
        """The limits these parameters set, for rows of this width."""
        return cls(
            k=torch.tensor([min(p.top_k or width, width) for p in params], dtype=torch.int64, device=device),
            p=torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device),
            min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device).unsqueeze(-1),
        )

    def rows(self, index: torch.Tensor) -> Limits:
        return Limits(self.k[index], self.p[index], self.min_p[index])


def filters(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def draw_filtered(probabilities: torch.Tensor, weights: torch.Tensor, limits: Limits, u: torch.Tensor) -> torch.Tensor:
    """One token of each row at u in [0, 1), by the inverse of the cumulative distribution in order of rank.

    Top-k, top-p and min-p each keep the most likely tokens down to some rank (equals from the lowest id on), so
    together they keep a prefix of the ranking: the draw needs only as much of the ranking as that prefix. Sorting a
    vocabulary of 49,152 takes 4.6 ms a row on one core and is the last resort. Ranks and sums are exact, so how much
    was ranked does not show.
    """
    width = weights.shape[-1]
    if weights.device.type != "cpu":  # elsewhere sorting is cheap and asking whether it is needed is not
        return _draw(probabilities, weights, limits, u, width)[0]
    tokens, settled = _draw(probabilities, weights, limits, u, min(_RANKED_FIRST[0], width))
    for ranked in (*_RANKED_FIRST[1:], width):
        open_rows = (~settled).nonzero().squeeze(-1)
        if not len(open_rows):
            break
        tokens[open_rows], settled[open_rows] = _draw(
            probabilities[open_rows], weights[open_rows], limits.rows(open_rows), u[open_rows], min(ranked, width)
        )
    return tokens


def _draw(
    probabilities: torch.Tensor, weights: torch.Tensor, limits: Limits, u: torch.Tensor, ranked: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens, and whether so many ranks were enough to tell."""
    ids = best(probabilities, ranked)
    likely = probabilities.gather(1, ids)
    mass = weights.gather(1, ids).cumsum(-1)
    k = limits.k.clamp(max=ranked).unsqueeze(-1)
    of_k = mass.gather(1, k - 1)
    total = torch.where(limits.k.unsqueeze(-1) <= ranked, of_k, weights.sum(-1, keepdim=True))
    goal = (limits.p.unsqueeze(-1) * total.double()).ceil().long().minimum(total)
    in_nucleus = (mass < goal).sum(-1, keepdim=True) + 1
    likely_enough = (likely >= limits.min_p).sum(-1, keepdim=True)
    kept = k.minimum(in_nucleus).minimum(likely_enough).clamp(min=1)
    left = mass.gather(1, kept - 1)
    mark = (u.unsqueeze(-1) * left.double()).long().minimum(left - 1)
    place = torch.searchsorted(mass, mark, right=True).clamp_(max=ranked - 1)
    unlimited = limits.k == weights.shape[-1]
    cut = (in_nucleus.squeeze(-1) <= ranked) | (likely_enough.squeeze(-1) < ranked)
    return ids.gather(1, place).squeeze(-1), (limits.k <= ranked) | (unlimited & cut)


def draw_group(rows: torch.Tensor, params: list[SamplingParams], numbers: list[float]) -> torch.Tensor:
    """A random token for each row: over the whole vocabulary in order of id, or over what filters leave."""
    device = rows.device
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device).unsqueeze(-1)
    probabilities = relative(rows, rows.amax(-1, keepdim=True), temperature)
    weights = integer(probabilities)
    u = torch.tensor(numbers, dtype=torch.float64, device=device)
    filtered = [i for i, p in enumerate(params) if filters(p)]
    limits = Limits.of([params[i] for i in filtered], rows.shape[-1], device)
    if len(filtered) == len(params):
        return draw_filtered(probabilities, weights, limits, u)
    tokens = draw(weights, u)
    if filtered:
        index = torch.tensor(filtered, dtype=torch.int64, device=device)
        tokens[index] = draw_filtered(probabilities[index], weights[index], limits, u[index])
    return tokens
