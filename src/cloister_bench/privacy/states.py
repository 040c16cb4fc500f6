"""A prompt from the hidden states that cross a link where layers are private: an answer's rows before layer k, with
what vaults answer at layer k. A right guess gives the same states, so the adversary knows whether it is done."""

from collections.abc import Iterator, Sequence
from itertools import permutations

import torch
from torch.func import jacrev, vmap

from cloister_bench.privacy.network import Network, Past, joined
from cloister_bench.privacy.reconstruction import STEEP, Search

SWEEPS = 8
STARTS = 3  # guesses to begin with: the model's own and random ones
RANDOM = 32  # wrong guesses, whose states give each number its scale
FOUND = 1e-3  # of a wrong guess's loss
AT_ONCE = 2048
ROWS = 4  # of states, where all words are tried
SAMPLED = 4000  # words whose effect on the states gives its covariance
RIDGE = 1e-3  # of it: the MLP is not linear


def states_seen(network: Network, prompt: Sequence[int], answer: Sequence[int], layer: int) -> torch.Tensor:
    """[answer, hidden] before `layer`."""
    with torch.no_grad():
        x, _ = network.run(network.embed(torch.tensor([[*prompt, *answer]])), layer)
    return x[0, len(prompt) :]


class StateSearch:
    """Each place's tokens are tried one after the other, with all that follows computed. `with_parts`: what vaults
    answer at the layer counts, too."""

    @torch.no_grad()
    def __init__(
        self, network: Network, search: Search, layer: int, states: torch.Tensor, answer: Sequence[int], seed: int
    ) -> None:
        self._net, self._search, self._layer, self._answer = network, search, layer, list(answer)
        self._before, self._after, self._count = search.known
        _, given = network.run(network.embed(torch.tensor([self._before])), layer)
        self._past: Past = joined(None, given)
        self._states, self.with_parts = states, False
        self._draw = torch.Generator().manual_seed(seed)
        self._scale, self._units = torch.ones(()), (1.0, 1.0)
        wrong = self._embedded([self._random() for _ in range(RANDOM)])
        self._scale = self._guessed(wrong).std(0) + 1e-9
        self._units = float(self._of_states(wrong).mean()), float(search.loss(wrong).mean())

    def _random(self) -> list[int]:
        return torch.randint(0, self._net.vocabulary, (self._count,), generator=self._draw).tolist()

    def _embedded(self, guesses: Sequence[Sequence[int]]) -> torch.Tensor:
        return self._net.embed(torch.tensor([[*guess, *self._after] for guess in guesses]))

    def _guessed(self, x: torch.Tensor) -> torch.Tensor:
        answer = self._net.embed(torch.tensor(self._answer)).expand(len(x), -1, -1)
        return self._net.run(torch.cat((x, answer), 1), self._layer, self._past)[0][:, -len(self._answer) :]

    def _of_states(self, x: torch.Tensor) -> torch.Tensor:
        return ((self._guessed(x) - self._states) / self._scale).square().mean((1, 2))

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        """[batch]; 1 for a wrong guess, 0 for the right one."""
        found = self._of_states(x) / self._units[0]
        return found + self._search.loss(x) / self._units[1] if self.with_parts else found

    def steep(self, guess: Sequence[int]) -> torch.Tensor:
        """[position, STEEP]: tokens that lower the loss most, were it linear."""
        with torch.enable_grad():
            x = self._embedded([guess]).clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.loss(x).sum(), x)
        gain = -slope[0, : self._count] @ self._net.embeddings.T
        return gain.topk(min(STEEP, self._net.vocabulary)).indices

    @torch.no_grad()
    def run(self, *starts: Sequence[int]) -> list[int]:
        begun = [list(each) for each in (*starts, self._search.prior)]
        begun += [self._random() for _ in range(STARTS - len(begun))]
        best, least = begun[0], float("inf")
        for start in begun:
            guess, loss = self._descended(start)
            if loss < least:
                best, least = guess, loss
            if least < FOUND:
                break
        return best

    def _descended(self, guess: list[int]) -> tuple[list[int], float]:
        least = float("inf")
        for _ in range(SWEEPS):
            begun = least
            some = torch.cat((self._search.likely(guess), self.steep(guess)), 1)
            for at in range(self._count):
                tried = [guess, *([*guess[:at], int(one), *guess[at + 1 :]] for one in some[at])]
                losses = torch.cat([self.loss(part) for part in torch.split(self._embedded(tried), 96)])
                least, guess = float(losses.min()), tried[int(losses.argmin())]
            for tried in (list(_reordered(guess)) for _ in range(self._count)):  # right words in wrong places are near
                losses = torch.cat([self.loss(part) for part in torch.split(self._embedded(tried), 96)])
                if float(losses.min()) >= least:
                    break
                least, guess = float(losses.min()), tried[int(losses.argmin())]
            if least >= 0.999 * begun or least < FOUND:
                break
        return guess, least

    @torch.no_grad()
    def run_with_rows(self, rows: torch.Tensor) -> list[int]:
        """The baseline: the states of the secret's own rows are known. Tokens are tried as the model expects them."""
        guess: list[int] = []
        past = self._past
        for row in rows:
            best, token = float("inf"), 0
            for some in torch.split(self._search.likely([*guess, 0], self._net.vocabulary)[-1], AT_ONCE):
                found, _ = self._net.run(self._net.embed(some)[:, None], self._layer, past)
                far = (found[:, 0] - row).norm(dim=1) / row.norm()
                if float(far.min()) < best:
                    best, token = float(far.min()), int(some[far.argmin()])
                if best < FOUND:
                    break
            guess.append(token)
            past = joined(past, self._net.run(self._net.embed(torch.tensor([[token]])), self._layer, past)[1])
        return guess


def _reordered(guess: list[int]) -> Iterator[list[int]]:
    """Two places exchanged, or one word moved."""
    for one, other in permutations(range(len(guess)), 2):
        exchanged, moved = list(guess), list(guess)
        exchanged[one], exchanged[other] = guess[other], guess[one]
        moved.insert(other, moved.pop(one))
        yield from (moved,) if one < other else (moved, exchanged)


class FirstStates:
    """At k = 1 what a word at a place adds to attention is known for all words; the rest of layer 0 is a function of
    one row. Its slope at the last guess ranks them; the best are computed."""

    @torch.no_grad()
    def __init__(self, network: Network, search: Search, states: torch.Tensor, answer: Sequence[int]) -> None:
        self._net = network
        before, after, self._count = search.known
        self._start, length = len(before), len(before) + self._count
        rows = torch.arange(0, len(answer), max(1, len(answer) // ROWS))[:ROWS]
        tokens = torch.tensor(answer)[rows]
        self._states, self._words = states[rows], network.embed(tokens)
        words = network.project(network.embeddings[:, None], 0, 0)
        self._keys, self._values = words.k, words.v
        place = length + len(after) + rows
        q = network.project(network.embed(tokens)[:, None], 0, 0).q  # [row, head, 1, dim], at position 0
        self._q = torch.stack([network.turned(one, at[None])[:, 0] for one, at in zip(q, place, strict=True)])
        known = [*enumerate(before), *enumerate([*after, *answer], start=length)]
        self._top: torch.Tensor | None = None
        self._column(torch.arange(0, network.vocabulary, 8), self._start)
        parts = [self._column(torch.tensor([token]), at)[0] for at, token in known]
        seen = torch.stack([torch.tensor(at) <= place for at, _ in known])
        self._known = (torch.stack(parts) * seen[..., None, None]).sum(0)

    def _column(self, tokens: torch.Tensor, place: int) -> torch.Tensor:
        """[token, row, head, 1 + dim]: exp(q·k)·(1, v)."""
        keys = self._net.turned(self._keys[tokens], torch.tensor([place]))[:, :, 0]
        values, heads = self._values[tokens][:, :, 0], self._q.shape[1]
        keys, values = (each.repeat_interleave(heads // each.shape[1], 1) for each in (keys, values))
        scores = torch.einsum("rhd,thd->trh", self._q, keys)
        if self._top is None:  # the ratio of sums does not depend on it; without it they may be infinite
            self._top = scores.amax(0)
        weight = (scores - self._top).clamp(max=60).exp()
        return torch.cat((weight[..., None], weight[..., None] * values[:, None]), -1)

    def _rows(self, sums: torch.Tensor) -> torch.Tensor:
        """[…, row, hidden] before the MLP."""
        return self._words + self._net.attention_out((sums[..., 1:] / sums[..., :1]).flatten(-2))

    def _best(self, rest: torch.Tensor, now: torch.Tensor, place: int, last: list[int]) -> int:
        """Differences count by the inverse covariance of what words do to the states: the other places are noise."""
        rows = self._rows(rest + now)
        slope = vmap(jacrev(lambda row: self._net.mlp(row[None])[0]))(rows)
        wanted = (self._states - self._net.mlp(rows)).flatten()

        def moved(tokens: torch.Tensor) -> torch.Tensor:
            change = self._rows(rest + self._column(tokens, place)) - rows
            return torch.einsum("rij,trj->tri", slope, change).flatten(1)

        some = moved(torch.arange(0, self._net.vocabulary, max(1, self._net.vocabulary // SAMPLED)))
        spread = (some - some.mean(0)).double()
        spread = spread.T @ spread / len(some)
        spread.diagonal().add_(RIDGE * float(spread.diagonal().mean()))
        white = torch.linalg.inv(torch.linalg.cholesky(spread)).float().T
        every = torch.split(torch.arange(self._net.vocabulary), AT_ONCE)
        far = torch.cat([((moved(part) - wanted) @ white).square().sum(1) for part in every])
        tried = torch.cat((far.topk(min(STEEP, len(far)), largest=False).indices, torch.tensor(last, dtype=torch.long)))
        found = self._net.mlp(self._rows(rest + self._column(tried, place))) - self._states
        return int(tried[(found.flatten(1) @ white).square().sum(1).argmin()])

    @torch.no_grad()
    def run(self) -> list[int]:
        middle = self._start + self._count // 2
        mean = self._column(torch.arange(0, self._net.vocabulary, 64), middle).mean(0)
        columns, guess = [mean] * self._count, [-1] * self._count
        for _ in range(SWEEPS):
            begun = list(guess)
            for at in range(self._count):
                rest = sum((*columns[:at], *columns[at + 1 :]), start=self._known)
                last = [guess[at]] if guess[at] >= 0 else []
                guess[at] = self._best(rest, columns[at], self._start + at, last)
                columns[at] = self._column(torch.tensor([guess[at]]), self._start + at)[0]
            for _ in range(self._count):
                tried = [guess, *_reordered(guess)]
                guess = tried[int(torch.stack([self._missed(each) for each in tried]).argmin())]
                if guess == tried[0]:
                    break
            columns = [self._column(torch.tensor([one]), self._start + at)[0] for at, one in enumerate(guess)]
            if guess == begun:
                break
        return guess

    def _missed(self, guess: list[int]) -> torch.Tensor:
        parts = [self._column(torch.tensor([one]), self._start + at)[0] for at, one in enumerate(guess)]
        return (self._net.mlp(self._rows(self._known + torch.stack(parts).sum(0))) - self._states).square().sum()
