"""Verified decoding: a vault computes again what the service claims for its session's answers, a chunk at a time.
A row's bits do not depend on its batch, so an honest token, its logprobs and its queries come out the same. A vault
never held another tenant's data: none can be in what it calls honest (ADR 16). Without the service it goes on alone: a
token of each sequence in a pass."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace

from cloister.compute.base import LinkAnswerer
from cloister.compute.layout import Chunk, Wanted
from cloister.engine.logits import adjusts
from cloister.engine.runner import Runner
from cloister.engine.sampler import Sampler
from cloister.engine.sequence import Sequence
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.messages.controller_vault import MAX_CLAIMED, FinishAlone, Verified
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import failed
from cloister.messages.types import FinishReason, TokenLogprob
from cloister.prefix.base import PrefixCache
from cloister.vault.looks import Watching

LOGITS_BYTES = 16 * 2**20  # of one piece of work
LEAST_ROWS = 16
Exposed = list[tuple[Sequence, int]]  # a request's sequences, each with its slot on the link
Reply = Verified | FinishAlone | Failed
NO_ROOM = ServiceUnavailable("The vault has no room to verify the answer.", hint="Ask for fewer tokens (max_tokens).")


@dataclass(slots=True, repr=False)
class _Piece:
    """A sequence's claims in one pass: row `first` + i predicts claims[i]. Alone, one that stands for any token."""

    number: int
    sequence: Sequence
    slot: int
    claims: list[int]
    first: int = 0
    honest: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)

    def may_reach(self, row: int) -> bool:
        so_far = len(self.honest)
        return self.honest == self.claims[:so_far] and row >= so_far and self.sequence.output.finish is None

    def goes_on(self, row: int) -> bool:
        return self.may_reach(row) and row == len(self.honest)

    def rows(self) -> list[tuple[int, int]]:
        start = self.sequence.computed - self.sequence.prompt_length
        return [(self.slot, start + row) for row in range(len(self.claims))]


class Verifying:
    """`exposed`: the sequences of a request that the service may ask about, or None. `sampled_rows`: at once.
    `longest`: claims that one pass takes at least, where logits are in a device's memory. `watching`: answers that end
    where they recite."""

    def __init__(
        self,
        runner: Runner,
        memory: PrefixCache,
        answerer: LinkAnswerer,
        exposed: Callable[[int], Exposed | None],
        sampled_rows: int,
        watching: Watching,
        longest: int = 0,
    ) -> None:
        self._watching, self._watched = watching, watching.answers
        self._sampled_rows = sampled_rows
        self._runner, self._memory, self._answerer, self._exposed = runner, memory, answerer, exposed
        self._sampler = Sampler(runner.vocabulary, runner.draw_rows, runner.mask_row)
        self._rows = max(LEAST_ROWS, longest, LOGITS_BYTES // (4 * runner.vocabulary))
        self._claims: dict[tuple[int, int], deque[int]] = {}
        self._alone: dict[tuple[int, int], None] = {}  # sequences without the service; the next row is the first's

    def claim(self, request_id: int, number: int, tokens: tuple[int, ...]) -> list[Verified]:
        """An answer that ends without another token is verified at once."""
        exposed = self._exposed(request_id)
        if exposed is None or (request_id in self._watched and self._watched[request_id].stopped):
            return []  # it ended a moment ago
        if any(key[0] == request_id for key in self._alone):
            return []
        if number >= len(exposed) or any(token >= self._runner.vocabulary for token in tokens):
            raise ProtocolError("A claim is of no sequence, or of no token of this model.")
        if not tokens:
            return [Verified(request_id, (), finish=_finish_of(exposed), sequence=number)]
        self._claims.setdefault((request_id, number), deque()).extend(tokens)
        return []

    def finish_alone(self, request_id: int) -> None:
        if (exposed := self._exposed(request_id)) is not None:  # else it ended a moment ago
            self.drop(request_id)
            self._alone |= {(request_id, number): None for number in range(len(exposed))}

    def drop(self, request_id: int) -> None:
        for kept in (self._claims, self._alone):
            for key in [key for key in kept if key[0] == request_id]:
                del kept[key]

    @property
    def next_tokens(self) -> int:
        return min(self._rows, sum(map(len, self._claims.values())))

    @property
    def alone(self) -> int:
        return min(self._rows, len(self._alone))

    def work(self, most: int) -> list[Reply]:
        """One pass over claims of all the session's answers."""
        budget, pieces = max(1, min(most, self._rows)), list[_Piece]()
        for request_id, number in list(self._claims):
            if budget and (piece := self._piece(request_id, number, budget)) is not None:
                pieces.append(piece)
                budget -= len(piece.claims)
        return self._done(pieces, claimed=True)

    def go_on(self) -> list[Reply]:
        """One pass over a row of each sequence that goes on alone, or of as many as a pass takes. Of one request those
        that are behind come first: it ends with the longest."""
        pieces: list[_Piece] = []
        for key in list(self._alone)[: self._rows]:
            del self._alone[key]
            exposed = self._exposed(key[0])
            if exposed is None or (sequence := exposed[key[1]][0]).output.finish is not None:
                continue
            self._alone[key] = None
            if sequence.generated == min(one.generated for one, _ in exposed if one.output.finish is None):
                pieces.append(_Piece(key[1], *exposed[key[1]], [0]))
        return self._done(pieces, claimed=False)

    def _done(self, pieces: list[_Piece], *, claimed: bool) -> list[Reply]:
        """An answer that does not fit the vault fails. One whose record of what was asked is full goes on alone."""
        left, by_request = dict[int, Reply](), dict[int, list[_Piece]]()
        for piece in pieces:
            request_id = piece.sequence.request_id
            by_request.setdefault(request_id, []).append(piece)
            if claimed and self._outgrew(piece):
                left[request_id] = FinishAlone(request_id)
            elif not self._grow(piece):
                left[request_id] = failed(request_id, NO_ROOM)
        for request_id in left:
            self.drop(request_id)
            del by_request[request_id]
        replies = list(left.values())
        together = [piece for several in by_request.values() for piece in several]
        try:
            same = self._compute(together, claimed=claimed) if together else True
        except MemoryError:
            raise
        except Exception as error:
            return [*replies, *(failed(request_id, error) for request_id in by_request)]
        for request_id, several in by_request.items():
            replies += self._replies(request_id, several, same=same, claimed=claimed)
        return replies

    def _piece(self, request_id: int, number: int, budget: int) -> _Piece | None:
        """The next claims of a sequence; None if it has ended. Claims behind an end count for nothing."""
        exposed, waiting = self._exposed(request_id), self._claims[request_id, number]
        if exposed is None or exposed[number][0].output.finish is not None:
            del self._claims[request_id, number]
            return None
        claims = [waiting.popleft() for _ in range(min(len(waiting), budget, MAX_CLAIMED))]
        if not waiting:
            del self._claims[request_id, number]
        return _Piece(number, *exposed[number], claims)

    def _outgrew(self, piece: _Piece) -> bool:
        """Queries behind an answer's end deviate."""
        last = piece.sequence.limit - piece.sequence.prompt_length
        return self._answerer.recorded < (self._answerer.asked(piece.slot) or 0) <= last

    def _grow(self, piece: _Piece) -> bool:
        sequence, pool = piece.sequence, self._memory.pool
        need = sequence.layout.blocks(sequence.computed + len(piece.claims)) - len(sequence.blocks.all)
        own = pool.allocate(need) if self._memory.make_room(need) else None
        sequence.blocks.all += own or ()
        return own is not None

    def _compute(self, pieces: list[_Piece], *, claimed: bool) -> bool:
        """Whether the service asked what is asked here, for what it claimed."""
        chunks: list[Chunk] = []
        rows: list[tuple[int, int]] = []
        tokens: list[int] = []
        for piece in pieces:
            sequence, piece.first = piece.sequence, len(rows)
            inputs, start = [sequence.tokens[-1], *piece.claims[:-1]], sequence.computed
            blocks = sequence.blocks.all[: sequence.layout.blocks(start + len(inputs))]
            chunks.append(Chunk(inputs, start, blocks, sequence.layout, Wanted.ALL))
            rows += piece.rows()
            tokens += inputs
        asked = [(piece.sequence.request_id, chunk) for piece, chunk in zip(pieces, chunks, strict=True)]
        with self._answerer.comparing(rows if claimed else []) as same, self._watching.looking(asked):
            logits = self._runner.forward(chunks)
        self._take(logits, pieces)
        logits.zero_()
        if not claimed:
            return True
        return same() and self._answerer.started(rows, tokens) and not any(map(self._asked_behind_the_end, pieces))

    def _asked_behind_the_end(self, piece: _Piece) -> bool:
        """There nothing is compared: each query would be one that no answer needs."""
        return (self._answerer.asked(piece.slot) or 0) > piece.sequence.limit - piece.sequence.prompt_length

    def _take(self, logits: torch.Tensor, pieces: list[_Piece]) -> None:
        """Many rows at once, as if the claims before each were honest. Penalties depend on the tokens before: there
        each row waits for the last."""
        free: list[tuple[_Piece, int]] = []
        for row in range(max(len(piece.claims) for piece in pieces)):
            here = [piece for piece in pieces if row < len(piece.claims)]
            free += [(piece, row) for piece in here if not adjusts(piece.sequence.params)]
            self._take_rows(logits, [(piece, row) for piece in here if adjusts(piece.sequence.params)])
        self._take_rows(logits, free)

    def _take_rows(self, logits: torch.Tensor, rows: list[tuple[_Piece, int]]) -> None:
        """Rows behind a claim that was not honest, or behind the end, count for nothing."""
        for start in range(0, len(rows), self._sampled_rows):
            several = rows[start : start + self._sampled_rows]
            if reached := [(piece, row) for piece, row in several if piece.may_reach(row)]:
                self._sample(logits, reached)

    def _sample(self, logits: torch.Tensor, rows: list[tuple[_Piece, int]]) -> None:
        sequences = [piece.sequence for piece, _ in rows]
        ahead = [row - len(piece.honest) for piece, row in rows]
        here = logits[torch.tensor([piece.first + row for piece, row in rows], device=logits.device)]
        sampled = self._sampler.sample(here, sequences, list(range(len(rows))), ahead=ahead)
        here.zero_()
        for (piece, row), token, logprob in zip(rows, sampled.tokens, sampled.logprobs, strict=True):
            if piece.goes_on(row):
                piece.honest.append(token)
                piece.logprobs.append(logprob)
                piece.sequence.computed += 1
                piece.sequence.append(token)

    def _replies(self, request_id: int, pieces: list[_Piece], *, same: bool, claimed: bool) -> list[Verified]:
        if claimed and any(piece.honest != piece.claims for piece in pieces):
            self.drop(request_id)
        exposed = self._exposed(request_id) or []
        finish = _finish_of(exposed)
        if finish is not None and claimed:
            same = same and all(self._all_verified(*each) for each in exposed)
        replies = []
        for piece in pieces:
            scores = tuple(score for score in piece.logprobs if score is not None) or None
            last = finish if piece is pieces[-1] else None
            reply = Verified(request_id, tuple(piece.honest), scores, last, piece.number, not same)
            replies.append(self._filtered(request_id, exposed, reply))
        return replies

    def _filtered(self, request_id: int, exposed: Exposed, reply: Verified) -> Verified:
        """Without the chunk in which a watched answer recites, which ends it."""
        if (watch := self._watched.get(request_id)) is None or not exposed:
            return reply
        [(sequence, _)] = exposed
        answer = sequence.tokens[sequence.prompt_length :]
        may_leave = watch.judge(answer, ended=sequence.output.finish is not None)
        if not watch.stopped:
            return reply
        self.drop(request_id)
        kept = max(0, len(reply.tokens) - (len(answer) - may_leave))
        scores = (reply.logprobs and reply.logprobs[:kept]) or None
        return replace(reply, tokens=reply.tokens[:kept], logprobs=scores, finish="content_filter")

    def _all_verified(self, sequence: Sequence, slot: int) -> bool:
        """Of an answer that ended: the service asked for no more tokens than are computed again."""
        return self._answerer.asked(slot) in (None, sequence.computed - sequence.prompt_length)


def _finish_of(exposed: Exposed) -> FinishReason | None:
    if not exposed:
        return None
    first, group = exposed[0][0], exposed[0][0].group
    return first.output.finish if group is None else group.finish
