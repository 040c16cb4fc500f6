"""Verified decoding: a vault computes again what the service claims for its session's answers, a chunk at a time.
A row's bits do not depend on its batch, so an honest token and its logprobs come out the same. A vault never held
another tenant's data: none can be in what it calls honest (ADR 16)."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from cloister.compute.layout import Chunk, Wanted
from cloister.engine.runner import Runner
from cloister.engine.sampler import Sampler
from cloister.engine.sequence import Sequence
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.messages.controller_vault import MAX_CLAIMED, Verified
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import failed
from cloister.messages.types import FinishReason, TokenLogprob
from cloister.prefix.base import PrefixCache

LOGITS_BYTES = 16 * 2**20  # of one piece of work
LEAST_ROWS = 16


@dataclass(slots=True, repr=False)
class _Piece:
    """A sequence's claims in one pass: row `first` + i predicts claims[i]."""

    number: int
    sequence: Sequence
    claims: list[int]
    first: int
    honest: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)

    def goes_on(self, row: int) -> bool:
        return row < len(self.claims) and self.honest == self.claims[:row] and self.sequence.output.finish is None

    @property
    def deviates(self) -> bool:
        return self.honest != self.claims


class Verifying:
    """`exposed`: the sequences of a request that the service may ask about, or None."""

    def __init__(self, runner: Runner, memory: PrefixCache, exposed: Callable[[int], list[Sequence] | None]) -> None:
        self._runner, self._memory, self._exposed = runner, memory, exposed
        self._sampler = Sampler(runner.vocabulary, runner.draw_rows)
        self._rows = max(LEAST_ROWS, LOGITS_BYTES // (4 * runner.vocabulary))
        self._claims: dict[tuple[int, int], deque[int]] = {}

    def claim(self, request_id: int, number: int, tokens: tuple[int, ...]) -> list[Verified]:
        """An answer that ends without another token is verified at once."""
        sequences = self._exposed(request_id)
        if sequences is None:
            return []  # it ended a moment ago
        if number >= len(sequences) or any(token >= self._runner.vocabulary for token in tokens):
            raise ProtocolError("A claim is of no sequence, or of no token of this model.")
        if not tokens:
            return [Verified(request_id, (), finish=finish_of(sequences), sequence=number)]
        self._claims.setdefault((request_id, number), deque()).extend(tokens)
        return []

    def drop(self, request_id: int) -> None:
        for key in [key for key in self._claims if key[0] == request_id]:
            del self._claims[key]

    @property
    def next_tokens(self) -> int:
        return min(self._rows, sum(map(len, self._claims.values())))

    def work(self, most: int) -> list[Verified | Failed]:
        """One pass over claims of all the session's answers. An answer that does not fit the vault fails."""
        pieces: dict[int, list[_Piece]] = {}
        replies: list[Verified | Failed] = []
        rows, budget = 0, max(1, min(most, self._rows))
        for key in list(self._claims):
            request_id, number = key
            sequences = self._exposed(request_id)
            count = min(len(self._claims[key]), budget - rows, MAX_CLAIMED)
            if sequences is None or sequences[number].output.finish is not None:
                del self._claims[key]
            elif count and not self._grow(sequences[number], count):
                self.drop(request_id)
                pieces.pop(request_id, None)
                full = ServiceUnavailable(
                    "The vault has no room to verify the answer.", hint="Ask for fewer tokens (max_tokens)."
                )
                replies.append(failed(request_id, full))
            elif count:
                claims = [self._claims[key].popleft() for _ in range(count)]
                if not self._claims[key]:
                    del self._claims[key]
                pieces.setdefault(request_id, []).append(_Piece(number, sequences[number], claims, rows))
                rows += count
        work = [piece for several in pieces.values() for piece in several]
        try:
            if work:
                self._compute(work)
        except MemoryError:
            raise
        except Exception as error:
            return [*replies, *(failed(request_id, error) for request_id in pieces)]
        for request_id, several in pieces.items():
            replies += self._replies(request_id, several)
        return replies

    def _grow(self, sequence: Sequence, count: int) -> bool:
        pool, need = self._memory.pool, sequence.layout.blocks(sequence.computed + count) - len(sequence.blocks.all)
        own = pool.allocate(need) if self._memory.make_room(need) else None
        if own is None:
            return False
        sequence.blocks.all += own
        return True

    def _compute(self, pieces: list[_Piece]) -> None:
        row, chunks = 0, []
        for piece in pieces:
            sequence, piece.first = piece.sequence, row
            row += len(piece.claims)
            inputs, start = [sequence.tokens[-1], *piece.claims[:-1]], sequence.computed
            blocks = sequence.blocks.all[: sequence.layout.blocks(start + len(inputs))]
            chunks.append(Chunk(inputs, start, blocks, sequence.layout, Wanted.ALL))
        logits = self._runner.forward(chunks)
        for at in range(max(len(piece.claims) for piece in pieces)):
            self._take_row(logits, [piece for piece in pieces if piece.goes_on(at)], at)
        logits.zero_()

    def _take_row(self, logits: torch.Tensor, pieces: list[_Piece], at: int) -> None:
        """Token by token: penalties depend on the tokens before."""
        if not pieces:
            return
        sequences = [piece.sequence for piece in pieces]
        sampled = self._sampler.sample(logits, sequences, [piece.first + at for piece in pieces])
        for piece, token, logprob in zip(pieces, sampled.tokens, sampled.logprobs, strict=True):
            piece.honest.append(token)
            piece.logprobs.append(logprob)
            piece.sequence.computed += 1
            piece.sequence.append(token)

    def _replies(self, request_id: int, pieces: list[_Piece]) -> list[Verified]:
        if any(piece.deviates for piece in pieces):
            self.drop(request_id)
        sequences = self._exposed(request_id)
        finish = None if sequences is None else finish_of(sequences)
        replies = []
        for piece in pieces:
            scores = tuple(score for score in piece.logprobs if score is not None) or None
            last = finish if piece is pieces[-1] else None
            replies.append(Verified(request_id, tuple(piece.honest), scores, last, piece.number))
        return replies


def finish_of(sequences: list[Sequence]) -> FinishReason | None:
    group = sequences[0].group
    return sequences[0].output.finish if group is None else group.finish
