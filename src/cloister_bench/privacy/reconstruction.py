"""A prompt from what a vault answers at one layer: (A, m, γ) for the queries of an honest answer, in the link's fp32.
The adversary knows the weights, the template, the answer and the prompt's length (it may try each: a right prompt
leaves no residue). Positions are matched one by one against a sum that all are in, then again, given the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import torch

from cloister.compute.reference import part_of
from cloister_bench.privacy.network import Network, Past, continued, joined

LIKELY = 256  # candidates by the model's own prediction
STEEP = 128  # candidates by the gradient of the loss
TRIED = 24  # of them computed with all that follows
SWEEPS = 6
ASKED = (4, 24)  # queries of each kv head that are compared, at layer 0 and deeper
SAMPLED = (6000, 256)  # tokens whose columns give the mean, and at layer 0 the covariance
RIDGE = 1e-7  # of the covariance
EXACT = 1e-3  # a relative distance under which keys and values are the same


@dataclass(frozen=True, slots=True)
class Seen:
    """At one layer. `q` [kv heads, queries, dim]; `target` [kv heads, queries, 1 + dim]: 1 and A, to which a position
    adds exp(q·k - lse)·(1, v). `keys`, `values` are for the baseline alone."""

    layer: int
    q: torch.Tensor
    lse: torch.Tensor
    target: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Hidden:
    before: list[int]
    secret: list[int]
    after: list[int]

    @property
    def prompt(self) -> list[int]:
        return [*self.before, *self.secret, *self.after]


def seen_by_service(network: Network, prompt: Sequence[int], answer: Sequence[int]) -> list[Seen]:
    """At every layer."""
    found = []
    with torch.no_grad():
        _, given = network.run(network.embed(torch.tensor([[*prompt, *answer]])), network.layers)
    for layer, (q, k, v) in enumerate(given):
        keys, values = k[0, :, : len(prompt)], v[0, :, : len(prompt)]
        asked = q[0, :, len(prompt) :].reshape(keys.shape[0], -1, keys.shape[-1])
        part = part_of(asked, keys, values)
        target = torch.cat((torch.ones_like(part.top)[..., None], part.attended), -1)
        found.append(Seen(layer, asked, part.top + part.total.log(), target, keys, values))
    return found


class Search:
    """A position's column is what its keys and values add to the target, for some queries. At layer 0 distances are
    measured in the inverse covariance of columns: what other positions add is noise of that covariance."""

    @torch.no_grad()
    def __init__(self, network: Network, seen: Seen, before: list[int], after: list[int], count: int) -> None:
        self._net, self._seen, self._before, self._after, self._count = network, seen, before, after, count
        _, given = network.run(network.embed(torch.tensor([before])), network.layers)
        self._all_layers: Past = joined(None, given)
        self._past: Past = self._all_layers[: seen.layer]
        self._every: dict[int, torch.Tensor] = {}  # all tokens' columns at a place, at layer 0
        self.prior = continued(network, before, count)  # the model's own guess, which uses nothing that was seen
        step = max(1, seen.q.shape[1] // ASKED[bool(seen.layer)])
        self._q, self._lse = seen.q[:, ::step], seen.lse[:, ::step]
        known = self._columns(given[seen.layer].k, given[seen.layer].v).sum(1)[0]
        self._target = seen.target[:, ::step].flatten() - known
        self._words = None if seen.layer else network.project(network.embeddings[:, None], 0, 0)
        middle = len(before) + count // 2
        some = torch.randperm(network.vocabulary, generator=torch.Generator().manual_seed(0))
        columns = self._candidates(some[: SAMPLED[bool(seen.layer)]], self._past, middle)
        self._mean = columns.mean(0)
        self._scale = columns.std()
        self._white: torch.Tensor | None = None
        if not seen.layer:
            centred = (columns - self._mean).double()
            spread = centred.T @ centred / len(columns)
            spread.diagonal().add_(RIDGE * float(spread.diagonal().mean()))
            self._white = torch.linalg.inv(torch.linalg.cholesky(spread)).float()
            every = self._candidates(None, [], middle)
            self._sizes = torch.cat([self._size(each) for each in torch.split(every, 4096)])

    @property
    def known(self) -> tuple[list[int], list[int], int]:
        """What stands before and after the secret, and how many tokens it has."""
        return self._before, self._after, self._count

    def _size(self, rows: torch.Tensor) -> torch.Tensor:
        """[…] of rows […, equations]. Deeper, a wrong beginning disturbs what follows: large differences count."""
        return (rows / self._scale if self._white is None else rows @ self._white.T).square().sum(-1)

    def _columns(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """[batch, positions, equations] of keys and values [batch, kv heads, positions, dim]."""
        # [batch, heads, queries, positions]; no token of the prompt has more than the whole mass.
        weight = (self._q @ keys.transpose(2, 3) - self._lse[..., None]).clamp(max=0.01).exp()
        one = torch.cat((torch.ones_like(values[..., :1]), values), -1)
        return torch.einsum("bhqp,bhpd->bphqd", weight, one).flatten(2)

    def _candidates(self, tokens: torch.Tensor | None, past: Past, place: int) -> torch.Tensor:
        """[tokens, equations]: each token's column at a place, after a beginning. None: all tokens, at layer 0."""
        if tokens is None:
            assert self._words is not None
            if place not in self._every:
                keys = self._net.turned(self._words.k, torch.tensor([place]))
                pairs = zip(torch.split(keys, 4096), torch.split(self._words.v, 4096), strict=True)
                self._every[place] = torch.cat([self._columns(*pair)[:, 0] for pair in pairs])
            return self._every[place]
        hidden, _ = self._net.run(self._net.embed(tokens)[:, None], self._seen.layer, past)
        parts = self._net.project(hidden, self._seen.layer, place)
        return self._columns(parts.k, parts.v)[:, 0]

    def _beyond(self, past: Past, tokens: Sequence[int]) -> Past:
        _, given = self._net.run(self._net.embed(torch.tensor([tokens])), self._seen.layer, past)
        return joined(past, given)

    def _guessed(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, positions, equations] of embedded secrets with what follows them."""
        hidden, _ = self._net.run(x, self._seen.layer, self._past)
        parts = self._net.project(hidden, self._seen.layer, len(self._before))
        return self._columns(parts.k, parts.v)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self._size(self._target - self._guessed(x).sum(1))

    def likely(self, guess: Sequence[int], most: int = LIKELY) -> torch.Tensor:
        """[position, most]: what the model itself expects after each position's beginning."""
        x, _ = self._net.run(
            self._net.embed(torch.tensor([[self._before[-1], *guess[:-1]]])),
            self._net.layers,
            [(k[:, :, :-1], v[:, :, :-1]) for k, v in self._all_layers],
        )
        return self._net.logits(x[0]).topk(min(most, self._net.vocabulary)).indices

    def steep(self, guess: Sequence[int]) -> torch.Tensor:
        """[position, STEEP]: tokens that lower the loss most, were it linear."""
        with torch.enable_grad():
            x = self._net.embed(torch.tensor([[*guess, *self._after]])).clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.loss(x).sum(), x)
        gain = -slope[0, : self._count] @ self._net.embeddings.T
        return gain.topk(min(STEEP, self._net.vocabulary)).indices

    @torch.no_grad()
    def run(self) -> list[int]:
        """Each place from left to right; then each again, given the others, until nothing changes."""
        guess = self._left_to_right()
        for _ in range(SWEEPS):
            before, some = list(guess), None
            if self._seen.layer:
                some = torch.cat((self.likely(guess), self.steep(guess)), 1)
            for at in range(self._count):
                guess[at] = self._best(guess, at, None if some is None else some[at])
            guess = self._moved(guess)
            if guess == before:
                break
        return guess

    def _left_to_right(self) -> list[int]:
        """What follows a place adds the mean; candidates are what the model expects, at layer 0 all tokens."""
        guess, past = list(self.prior), self._past
        for at in range(self._count):
            columns = self._guessed(self._net.embed(torch.tensor([[*guess, *self._after]])))[0]
            rest = self._target - columns[:at].sum(0) - columns[self._count :].sum(0)
            rest = rest - (self._count - 1 - at) * self._mean
            some = self.likely(guess[: at + 1])[-1] if self._seen.layer else None
            guess[at] = self._nearest(rest, at, some, past, 1)[0]
            past = self._beyond(past, guess[at : at + 1])
        return guess

    def _nearest(self, rest: torch.Tensor, at: int, tokens: torch.Tensor | None, past: Past, most: int) -> list[int]:
        """The tokens (None: of all, at layer 0) that explain most of what is left."""
        columns = self._candidates(tokens, past, len(self._before) + at)
        if tokens is None:
            assert self._white is not None
            gains = 2 * columns @ (self._white.T @ (self._white @ rest)) - self._sizes
            tokens = gains.topk(min(STEEP, len(gains))).indices
            columns = columns[tokens]
        gains = -self._size(rest - columns)
        return [int(token) for token in tokens[gains.topk(min(most, len(gains))).indices]]

    def _best(self, guess: list[int], at: int, candidates: torch.Tensor | None) -> int:
        past = self._beyond(self._past, guess[:at]) if at else self._past
        columns = self._guessed(self._net.embed(torch.tensor([[*guess, *self._after]])))[0]
        rest = self._target - columns.sum(0) + columns[at]
        tried = [*self._nearest(rest, at, candidates, past, TRIED), guess[at]]
        rows = torch.tensor([[*guess[:at], one, *guess[at + 1 :], *self._after] for one in tried])
        return int(tried[int(self.loss(self._net.embed(rows)).argmin())])

    def _moved(self, guess: list[int]) -> list[int]:
        """Right words in wrong places are near: two places exchanged, or one word moved, as long as the loss falls."""
        least, pairs = float("inf"), list(permutations(range(self._count), 2))
        while True:
            rows = [list(guess)]
            for one, other in pairs:
                exchanged, moved = list(guess), list(guess)
                exchanged[one], exchanged[other] = guess[other], guess[one]
                moved.insert(other, moved.pop(one))
                rows += [moved] if one < other else [moved, exchanged]
            x = self._net.embed(torch.tensor([[*row, *self._after] for row in rows]))
            losses = torch.cat([self.loss(some) for some in torch.split(x, 64)])
            if float(losses.min()) >= least:
                return guess
            least, guess = float(losses.min()), rows[int(losses.argmin())]

    @torch.no_grad()
    def run_with_keys(self) -> list[int]:
        """The baseline: a position's own keys and values are known. Tokens are tried as the model expects them."""
        guess: list[int] = []
        past, start = self._past, len(self._before)
        for at in range(self._count):
            wanted = torch.cat((self._seen.keys[:, start + at], self._seen.values[:, start + at]), -1).flatten()
            best, token = float("inf"), 0
            for some in torch.split(self.likely([*guess, 0], self._net.vocabulary)[-1], LIKELY):
                hidden, _ = self._net.run(self._net.embed(some)[:, None], self._seen.layer, past)
                parts = self._net.project(hidden, self._seen.layer, start + at)
                found = torch.cat((parts.k[:, :, 0], parts.v[:, :, 0]), -1).flatten(1)
                far = (found - wanted).norm(dim=1) / wanted.norm()
                if float(far.min()) < best:
                    best, token = float(far.min()), int(some[far.argmin()])
                if best < EXACT:
                    break
            guess.append(token)
            past = self._beyond(past, [token])
        return guess
