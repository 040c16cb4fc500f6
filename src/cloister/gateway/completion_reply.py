"""Answers in the shape of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from cloister.gateway.choice import Delta, Finish, ScoredToken
from cloister.gateway.progress import comment
from cloister.gateway.reply import Reply, Usage, encode, finite


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


class Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"


class CompletionReply(Reply):
    id_prefix = "cmpl"
    chunk_object = "text_completion"

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        choices = [
            CompletionChoice(index, delta.text, self._logprobs(delta.scores), delta.finish or "stop")
            for index, delta in enumerate(deltas)
        ]
        return encode(Completion(self.id, self.created, self.model, choices, usage))

    def opening(self, index: int) -> bytes:
        return b""

    def events(self, index: int, delta: Delta) -> bytes:
        events = b"" if delta.progress is None else comment(delta.progress)
        if not (delta.text or delta.scores or delta.finish):
            return events
        scores = b"null" if delta.scores is None else encode(self._logprobs(delta.scores))
        return events + self.event(index, b'"text":%b' % encode(delta.text), scores, encode(delta.finish))

    def _logprobs(self, scores: list[ScoredToken] | None) -> CompletionLogprobs | None:
        if scores is None:
            return None
        return CompletionLogprobs(
            [self.label(scored.token) for scored in scores],
            [None if scored.logprob is None else finite(scored.logprob) for scored in scores],
            [self._top(scored) for scored in scores],
            [scored.offset for scored in scores],
        )

    def _top(self, scored: ScoredToken) -> dict[str, float] | None:
        """The alternatives and, even if it is not among the best, the token itself."""
        if scored.logprob is None:
            return None
        top = {self.label(token): finite(logprob) for token, logprob in scored.top}
        top.setdefault(self.label(scored.token), finite(scored.logprob))
        return top
