"""Compact virtual prompts (Confidential Prompting §5.2): what λ+1 prompts have in common is computed once, without
their secrets, and each holds only its own tokens beside it. An approximation, and the same one for every prompt:
nothing here depends on which is real."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Wanted

RUN = 16  # a shorter run of equal tokens between two differences is each prompt's own

Tokens = Sequence[int]
Integers = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Run:
    """Equal tokens of all prompts; where they start in each."""

    starts: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens start..end-1 of a prompt, held from place `held` of its blocks on and rotated from `position` on. Common
    tokens see the common ones before them; a prompt's own see the first `seen` common ones and its own before them."""

    start: int
    end: int
    held: int
    position: int
    seen: int


class Compact:
    """A prompt's blocks hold the common tokens first, then its own. Common tokens fill whole blocks; the rest of them
    at the end, one at least, is each prompt's own: the answer's first token depends on the secret. Where prompts
    differ, all leave as many positions as the longest needs, so that a common token has one position."""

    def __init__(self, prompts: Sequence[Tokens], public: int) -> None:
        self._prompts, self._public = prompts, public
        runs = _whole_blocks(_common_runs(prompts), public, [len(prompt) for prompt in prompts])
        self.prefix = runs[0].length if runs else 0  # tokens before the first difference: computed as ever
        self.common = sum(run.length for run in runs)
        self._shared: list[_Piece] = []
        self._own: list[list[_Piece]] = [[] for _ in prompts]
        ends, own, position, packed = [0] * len(prompts), [0] * len(prompts), 0, 0
        for run in (*runs, _Run(tuple(map(len, prompts)), 0)):
            for variant, (end, start) in enumerate(zip(ends, run.starts, strict=True)):
                if start > end:
                    self._own[variant].append(_Piece(end, start, self.common + own[variant], position, packed))
                    own[variant] += start - end
            position += max(start - end for end, start in zip(ends, run.starts, strict=True))
            if run.length:
                self._shared.append(_Piece(run.starts[0], run.starts[0] + run.length, packed, position, packed))
            ends = [start + run.length for start in run.starts]
            position, packed = position + run.length, packed + run.length
        self.ends = [pieces[-1].position + pieces[-1].end - pieces[-1].start for pieces in self._own]

    @property
    def saves(self) -> bool:
        return self.common > self.prefix >= self._public

    def layout(self, variant: int, relative: bool) -> Layout:
        """As the answer sees the prompt. `relative`: engine.sequence.layout_of."""
        length, end = len(self._prompts[variant]), self.ends[variant]
        return Layout(length, self._public, rotation=end) if relative else Layout(length, self._public, origin=end)

    def chunk(self, variant: int, computed: int, most: int, blocks: Sequence[int]) -> Chunk:
        """The next `most` tokens or fewer, after `computed` ones that its blocks hold already."""
        own = computed >= self.common
        pieces = self._own[variant] if own else self._shared
        piece = [piece for piece in pieces if piece.held <= computed][-1]
        first = piece.start + computed - piece.held
        tokens = self._prompts[variant][first : min(first + most, piece.end)]
        # The piece is computed as an answer to what it sees: the layout's third segment is not bound to its place.
        before = piece.seen if own else self._public
        layout = Layout(before, self._public, origin=piece.position - piece.held + (self.common if own else before))
        start = before + computed - (self.common if own else before)
        held = [*blocks[: layout.blocks(before)], *blocks[self._blocks :]] if own else blocks
        last = computed + len(tokens) == len(self._prompts[variant])
        return Chunk(tokens, start, held, layout, Wanted.LAST if last else Wanted.NONE)

    @property
    def _blocks(self) -> int:
        return Layout(self.common, self._public).blocks(self.common)


def _common_runs(prompts: Sequence[Tokens]) -> list[_Run]:
    """The common beginning; then what begins with RUN tokens that each prompt has once, in all prompts' order."""
    grams = [_grams(prompt) for prompt in prompts]
    places = np.stack([_places(one, grams[0]) for one in grams], axis=1)
    runs = [_Run((0,) * len(prompts), _equal(prompts, [0] * len(prompts)))]
    ends = [runs[0].length] * len(prompts)
    at = ends[0]
    while at < len(places):
        starts = tuple(places[at].tolist())
        apart = any(start < end for start, end in zip(starts, ends, strict=True))
        if apart or (length := _equal(prompts, starts)) < RUN:
            at += 1
            continue
        runs.append(_Run(starts, length))
        ends = [start + length for start in starts]
        at = ends[0]
    return runs


def _grams(prompt: Tokens) -> Integers:
    """A number for each RUN tokens in a row. Equal numbers of unequal tokens cost a comparison."""
    factors = np.cumprod(np.full(RUN, 6364136223846793005, dtype=np.uint64))
    if len(prompt) < RUN:
        return np.empty(0, dtype=np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(np.array(prompt, dtype=np.uint64), RUN)
    found: Integers = (windows * factors).sum(axis=1, dtype=np.uint64)
    return found


def _places(grams: Integers, wanted: Integers) -> npt.NDArray[np.int64]:
    """Where each of `wanted` is; -1 if nowhere or more than once."""
    values, places, counts = np.unique(grams, return_index=True, return_counts=True)
    if not len(values):
        return np.full(len(wanted), -1)
    at = np.searchsorted(values, wanted).clip(max=len(values) - 1)
    return np.where((values[at] == wanted) & (counts[at] == 1), places[at], -1)


def _equal(prompts: Sequence[Tokens], starts: Sequence[int]) -> int:
    rests = [prompt[start:] for prompt, start in zip(prompts, starts, strict=True)]
    columns = enumerate(zip(*rests, strict=False))
    return next((at for at, tokens in columns if len(set(tokens)) > 1), min(map(len, rests)))


def _whole_blocks(runs: list[_Run], public: int, lengths: Sequence[int]) -> list[_Run]:
    """Cut at the end: whole blocks after the public tokens, and a token at least behind them in each prompt."""
    while runs:
        *before, last = runs
        behind = min(length - start - last.length for length, start in zip(lengths, last.starts, strict=True))
        kept = last.length - int(behind == 0)
        kept -= (sum(run.length for run in before) + kept - public) % BLOCK_TOKENS
        if kept > 0:
            return [*before, _Run(last.starts, kept)]
        runs = before
    return []
