"""The answers of /v1/completions."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from cloister.gateway.answer import Note, Reply, Usage, comment, encode, finite, note_of
from cloister.gateway.choice import Delta, Finish, ScoredToken


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry per token; offsets count characters of this choice's `text`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    cloister: Note = msgspec.UNSET


class Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"


class CompletionReply(Reply):
    id_prefix, chunk_object = "cmpl", "text_completion"
    first, nothing = b"", b'"text":""'

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        choices = [
            CompletionChoice(at, new.text, self._logprobs(new.scores), new.finish or "stop", note_of(new.finish))
            for at, new in enumerate(deltas)
        ]
        return encode(Completion(self.id, self.created, self.model, choices, usage))

    def events(self, index: int, delta: Delta) -> bytes:
        events = b"" if delta.progress is None else comment(delta.progress)
        if not (delta.text or delta.scores or delta.finish):
            return events
        scores = b"null" if delta.scores is None else encode(self._logprobs(delta.scores))
        return events + self.event(index, b'"text":%b' % encode(delta.text), scores, encode(delta.finish))

    def _logprobs(self, scores: list[ScoredToken] | None) -> CompletionLogprobs | None:
        if scores is None:
            return None
        tokens = [self.label(scored.token) for scored in scores]
        logprobs = [None if scored.logprob is None else finite(scored.logprob) for scored in scores]
        return CompletionLogprobs(tokens, logprobs, [*map(self._top, scores)], [scored.offset for scored in scores])

    def _top(self, scored: ScoredToken) -> dict[str, float] | None:
        """The alternatives and, even if it is not among the best, the token itself."""
        if scored.logprob is None:
            return None
        top = {self.label(token): finite(logprob) for token, logprob in scored.top}
        top.setdefault(self.label(scored.token), finite(scored.logprob))
        return top
