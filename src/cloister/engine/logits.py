"""Operations on rows of logits: penalties and bias, softmax in whole numbers, ranks, logprobs, the draw of a token.
Floating-point sums depend on their order, and so on the device, the number of rows and of threads. Here each
probability first becomes an integer weight. Integer sums are exact in every order, so all that follows (log-sum-exp,
top-p mass, the cumulative distribution) is bit for bit the same alone or among neighbours, on any device whose
elementwise operations are functions of the element. Rows are padded to whole vectors, so no row has a ragged end that
another code path would compute. Ranks: greater first, the lower index first among equals."""

import math
from collections.abc import Sequence

import torch

from cloister.compute.layer import Draws, MaskRow
from cloister.compute.layout import token_tensor
from cloister.grammar.mask import Mask
from cloister.messages.types import SamplingParams, TokenLogprob

LANES = 128
_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_ROWS_IN_CACHE = 4
SCALE = 2.0**44
"""Weight of a row's maximum. 2**18 tokens of full weight still fit 63 bits; 2**-44 is far below fp32's own error."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Adjustments:
    """One sequence's penalties, bias and form, kept up to date token by token on the device of the logits.
    Only the tokens concerned are touched, in this order: repetition penalty for every token of the prompt or the output
    (a positive logit is divided by it, a negative one multiplied); minus frequency_penalty × its count and minus
    presence_penalty for every token of the output; plus logit_bias; no stop token before `min_tokens` others; last what
    the answer's form allows (grammar.mask), which `min_tokens` cannot make longer."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], outputs: Sequence[int], device: torch.device
    ) -> None:
        self._params = params
        self._penalises = penalises(params)
        self._due = params.min_tokens  # tokens still to come before a stop token
        self._stops = token_tensor(list(params.stop_tokens) if params.min_tokens else [], device)
        seen = dict.fromkeys(prompt) if self._penalises else {}
        self._place: dict[int, int] = {token: place for place, token in enumerate(seen)}
        self._tokens = token_tensor(list(self._place), device, room=max(64, 2 * len(self._place)))
        self._counts = torch.zeros(len(self._tokens), dtype=torch.float32, device=device)
        self._biased = token_tensor(list(params.logit_bias), device)
        self._bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=device)
        self._mask = Mask(params.grammar, params.stop_tokens) if params.grammar else None
        for token in outputs:
            self.note(token)

    @property
    def complete(self) -> bool:
        """Whether the form allows no more tokens."""
        return self._mask is not None and self._mask.complete

    @property
    def failed(self) -> bool:
        """Whether the form cannot be followed any further."""
        return self._mask is not None and self._mask.failed

    def note(self, token: int) -> None:
        self._due -= 1
        if self._mask is not None:
            self._mask.note(token)
        if not self._penalises:
            return
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            before = self._tokens
            self._tokens = torch.cat((before, torch.zeros_like(before)))
            before.zero_()
            self._counts = torch.cat((self._counts, torch.zeros_like(self._counts)))
        self._tokens[place] = token
        self._counts[place] += 1.0

    def forget(self) -> None:
        """The sequence has ended: overwrite the tokens it had."""
        self._tokens.zero_()
        self._biased.zero_()
        self._place.clear()
        if self._mask is not None:
            self._mask.forget()

    def apply(self, row: torch.Tensor, mask_row: MaskRow | None = None) -> None:
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
        if self._mask is not None:
            self._mask.apply(row, params.stop_tokens if self._due > 0 else (), mask_row)
        elif self._due > 0:
            row[self._stops] = float("-inf")


def penalises(params: SamplingParams) -> bool:
    """Whether tokens seen matter to these parameters."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def adjusts(params: SamplingParams) -> bool:
    """Whether these parameters change logits at all, before temperature."""
    return bool(params.logit_bias or params.grammar) or params.min_tokens > 0 or penalises(params)


def padded(logits: torch.Tensor) -> torch.Tensor:
    """The rows, contiguous and filled with -inf to a multiple of LANES. Copies only where needed."""
    ragged = -logits.shape[-1] % LANES
    if ragged:
        return torch.nn.functional.pad(logits, (0, ragged), value=float("-inf"))
    return logits.contiguous()


def argmax(rows: torch.Tensor) -> torch.Tensor:
    """Index of each padded row's maximum, the lowest among equals.
    In two stages: on CPU amax uses vector instructions, torch's reduction with indices does not."""
    count, width = rows.shape
    groups = rows.view(count, width // LANES, LANES)
    best = groups.amax(-1).argmax(-1)
    inside = groups[torch.arange(count, device=rows.device), best].argmax(-1)
    return best * LANES + inside


def best(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` greatest of each padded row, best first: [rows, count].
    In two stages: the best `count` elements lie in the best `count` groups, where a group ranks by its maximum and then
    by its place. (Were an element's group not among them, each of those would hold an element ranking before it.)"""
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


def columns(count: int) -> int:
    """How many numbers `measure` gives for a row, with its `count` best."""
    return 3 + 2 * count


def measure(rows: torch.Tensor, at: torch.Tensor, chosen: torch.Tensor, count: int, out: torch.Tensor) -> None:
    """Write what `report` needs of each of the padded rows `at` to `out`: float64, [len(at), columns(count)].
    Columns: the chosen token's logit, the maximum, the sum of weights, then ids and logits of the `count` best. The
    logits are the model's own, before penalties, bias, temperature or filters. Decoded tokens and forced passes both go
    through here, so a replay gives the bits that decoding gave."""
    # On a CPU few rows at a time: what is made of them stays in a core's cache.
    size = _ROWS_IN_CACHE if rows.device.type == "cpu" else max(1, len(rows))
    groups = [slice(first, first + size) for first in range(0, len(at), size)]
    for group in groups:
        _measure(rows[at[group]], chosen[group], count, out[group])


def _measure(rows: torch.Tensor, chosen: torch.Tensor, count: int, out: torch.Tensor) -> None:
    maximum = rows.amax(-1, keepdim=True)
    out[:, :1] = rows.gather(1, chosen.unsqueeze(-1))
    out[:, 1:2] = maximum
    out[:, 2:3] = integer(relative(rows, maximum)).sum(-1, keepdim=True)
    if count:
        ids = best(rows, count)
        out[:, 3 : 3 + count] = ids
        out[:, 3 + count :] = rows.gather(1, ids)
        ids.zero_()


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
    Counter-based: a draw does not depend on the batch, on preemption or on repetition. Not a secret: for
    reproducibility, never for cryptography."""
    state = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((state + (index + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draw_rows(rows: torch.Tensor, how: Draws) -> torch.Tensor:
    """A token for each row at its u in [0, 1), by the inverse of the cumulative distribution (its order: see
    sampler.py). For devices whose kernels do not draw; draw.h does the same, faster."""
    device, width = rows.device, rows.shape[-1]
    temperature = torch.tensor(how.temperature, dtype=torch.float32, device=device).unsqueeze(-1)
    probabilities = relative(rows, rows.amax(-1, keepdim=True), temperature)
    weights = integer(probabilities)
    cumulative = weights.cumsum(-1)
    tokens = _places(cumulative, cumulative[:, -1:], how.u).squeeze(-1)
    limits = zip(how.top_k, how.top_p, how.min_p, strict=True)
    filtered = [k < width or p < 1.0 or min_p > 0.0 for k, p, min_p in limits]
    if not any(filtered):
        return tokens
    return torch.where(torch.tensor(filtered, device=device), draw_filtered(probabilities, weights, how), tokens)


def draw_filtered(probabilities: torch.Tensor, weights: torch.Tensor, how: Draws) -> torch.Tensor:
    """Top-k, top-p and min-p each keep a prefix of the ranking (equals from the lowest id on), so together they do
    too, and the draw is over that."""
    device, width = weights.device, weights.shape[-1]
    k = torch.tensor(how.top_k, dtype=torch.int64, device=device).clamp(max=width).unsqueeze(-1)
    p = torch.tensor(how.top_p, dtype=torch.float64, device=device).unsqueeze(-1)
    min_p = torch.tensor(how.min_p, dtype=torch.float32, device=device).unsqueeze(-1)
    ids = best(probabilities, width)
    mass = weights.gather(1, ids).cumsum(-1)
    total = mass.gather(1, k - 1)
    goal = (p * total.double()).ceil().long().minimum(total)
    in_nucleus = (mass < goal).sum(-1, keepdim=True) + 1
    likely_enough = (probabilities.gather(1, ids) >= min_p).sum(-1, keepdim=True)
    kept = k.minimum(in_nucleus).minimum(likely_enough).clamp(min=1)
    return ids.gather(1, _places(mass, mass.gather(1, kept - 1), how.u)).squeeze(-1)


def _places(cumulative: torch.Tensor, total: torch.Tensor, u: Sequence[float]) -> torch.Tensor:
    """Where in each row the cumulative sum passes the part u of the total; inside the row also where logits are NaN."""
    parts = torch.tensor(u, dtype=torch.float64, device=total.device).unsqueeze(-1)
    mark = (parts * total.double()).long().minimum(total - 1)
    return torch.searchsorted(cumulative, mark, right=True).clamp_(max=cumulative.shape[-1] - 1)
