"""One choice: tokens become text with logprobs; no part of a stop string is let through (Knuth-Morris-Pratt)."""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Literal, cast

from cloister.errors import ServiceUnavailable
from cloister.gateway.tool_calls import CallPiece, new_id
from cloister.messages.generation import Progress, Tokens
from cloister.messages.prompts import MAX_CALLS
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister.prompts.text_stream import REPLACEMENT
from cloister.prompts.tokenizer import Tokenizer
from cloister.tools.base import Call, Parser


class _Pattern:
    """One stop string and, for each matched length, the length to fall back to on a mismatch."""

    __slots__ = ("fallback", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.fallback = [0] * (len(text) + 1)
        matched = 0
        for position in range(1, len(text)):
            while matched and text[position] != text[matched]:
                matched = self.fallback[matched]
            if text[position] == text[matched]:
                matched += 1
            self.fallback[position + 1] = matched

    def advance(self, matched: int, character: str) -> int:
        """The length of the pattern's longest prefix that now ends the text."""
        while matched and character != self.text[matched]:
            matched = self.fallback[matched]
        return matched + 1 if character == self.text[matched] else 0


class StopStrings:
    def __init__(self, strings: Sequence[str]) -> None:
        self._patterns = tuple(map(_Pattern, strings))

    def watch(self) -> "StopWatch | None":
        return StopWatch(self._patterns) if self._patterns else None


class StopWatch:
    """Lets text through up to the first stop string to be completed (the longest, if several end together)."""

    __slots__ = ("_held", "_matched", "_patterns", "hit")

    def __init__(self, patterns: tuple[_Pattern, ...]) -> None:
        self._patterns, self._matched = patterns, [0] * len(patterns)
        self._held, self.hit = "", False

    def push(self, text: str, *, early: bool = False) -> str:
        """Take the next piece; return the text that can no longer be part of a stop string. `early`: none ends in it
        that counts."""
        if self.hit:
            return ""
        held = self._held + text
        matched = self._matched
        for end, character in enumerate(text, start=len(self._held) + 1):
            longest = 0
            for which, pattern in enumerate(self._patterns):
                length = matched[which] = pattern.advance(matched[which], character)
                if length == len(pattern.text):
                    longest = max(longest, length)
                    matched[which] = pattern.fallback[length]
            if longest and not early:
                self.hit, self._held = True, ""
                return held[: end - longest]
        keep = max(matched)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        rest, self._held = self._held, ""
        return rest


Finish = Literal["stop", "length", "content_filter", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Echo:
    text: str = field(repr=False)
    tokens: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log-probability (None: nothing predicts it) and its offset in the choice's text."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int


@dataclass(slots=True)
class Delta:
    """What is new in a choice. `scores` is None when no logprobs were asked for; `progress` comes at slow levels."""

    text: str
    scores: list[ScoredToken] | None
    finish: Finish | None
    progress: Progress | None = None
    reasoning: str = field(default="", repr=False)
    calls: list[CallPiece] = field(default_factory=list, repr=False)


@dataclass(eq=False, repr=False)
class Choice:
    """Turns the backend's messages into text. `prompt` is the number of the prompt that it continues; `parser` reads
    an answer of a chat, in which special tokens of `visible` are text."""

    index: int
    params: SamplingParams
    _tokenizer: Tokenizer
    stops: InitVar[StopStrings]
    prompt: int = 0
    echo: InitVar[Echo | None] = None
    parser: Parser | None = None
    visible: InitVar[Mapping[int, str] | None] = None
    most_calls: int = MAX_CALLS

    def __post_init__(self, stops: StopStrings, echo: Echo | None, visible: Mapping[int, str] | None) -> None:
        self.output_tokens = self.cached_tokens = 0
        self.finish: Finish | None = None
        self._stream = self._tokenizer.stream(visible)
        self._calls = self._sent = 0
        self._under_way = ""  # the id of the call of which a part was sent
        self._watch = stops.watch()
        self._echo_due = echo
        self._echo_scores: list[TokenLogprob] = []
        self._progress: Progress | None = None
        self._text = ""
        # Offsets count characters of the whole choice: decoded so far, and let through the stop watch so far.
        self._decoded = self._released = 0
        self._unreleased: list[ScoredToken] = []
        self._scores: list[ScoredToken] | None = None if self.params.logprobs is None else []

    def push(self, message: Tokens) -> None:
        if self.finish is not None:
            return
        if self._echo_due is not None:
            self._echo_scores += message.prompt_logprobs or ()
            if message.tokens or message.finish is not None:
                self._echo(self._echo_due, self._echo_scores or None)
        self._progress = message.progress or self._progress
        self.cached_tokens += message.cached
        tokens = message.tokens
        due = max(0, self.params.min_tokens - self.output_tokens)  # no stop string ends the text before
        self.output_tokens += len(tokens)
        if message.finish == "stop" and tokens and tokens[-1] in self.params.stop_tokens:
            tokens = tokens[:-1]
        if self._scores is None or message.logprobs is None:
            self._decode(self._stream.push(tokens[:due]), early=True)
            self._decode(self._stream.push(tokens[due:]))
        else:
            for place, (token, score) in enumerate(zip(tokens, message.logprobs, strict=False)):
                self._unreleased.append(ScoredToken(token, score.logprob, score.top, self._decoded))
                self._decode(self._stream.push((token,)), early=place < due)
        if message.finish is not None and self.finish is None:
            self._end(message.finish)

    def take(self) -> Delta:
        delta = Delta(self._text, self._scores, self.finish, self._progress)
        if self.parser is not None:
            self._parse(delta, self.parser)
        self._text, self._progress = "", None
        if self._scores is not None:
            self._scores = []
        return delta

    def _parse(self, delta: Delta, parser: Parser) -> None:
        parsed = parser.push(delta.text)
        if self.finish is not None:
            parsed.add(parser.finish())
        delta.text, delta.reasoning = parsed.content, parsed.reasoning
        found = [(call, True) for call in parsed.calls] + ([(parsed.ahead, False)] if parsed.ahead else [])
        for call, ends in found:
            if self._under_way or self._calls < self.most_calls:
                piece = self._piece(call, ends=ends)
                delta.calls += [piece] if piece.begins or piece.ends or piece.arguments else []
        if self._calls and self.finish == "stop":
            delta.finish = "tool_calls"

    def _piece(self, call: Call, *, ends: bool) -> CallPiece:
        begins = not self._under_way
        if begins:
            self._under_way, self._sent = new_id(), 0
            self._calls += 1
        piece = CallPiece(
            self._calls - 1, self._under_way, call.name, call.arguments[self._sent :], begins=begins, ends=ends
        )
        self._under_way, self._sent = "" if ends else self._under_way, len(call.arguments)
        return piece

    def _decode(self, text: str, *, early: bool = False) -> None:
        self._decoded += len(text)
        self._release(text if self._watch is None else self._watch.push(text, early=early))
        if self._watch is not None and self._watch.hit:
            self._unreleased.clear()
            self.finish = "stop"

    def _release(self, text: str) -> None:
        self._text += text
        self._released += len(text)
        if self._unreleased and self._scores is not None:
            shown = sum(scored.offset < self._released for scored in self._unreleased)
            self._scores += self._unreleased[:shown]
            del self._unreleased[:shown]

    def _end(self, finish: str) -> None:
        if finish == "cancelled":
            raise ServiceUnavailable("The service ended the request.", hint="Try again.")
        rest = self._stream.finish()
        # A text that the limit cut may end within a character, which is not shown.
        self._decode(rest if finish == "stop" else rest.rstrip(REPLACEMENT))
        if self.finish is not None:
            return
        if self._watch is not None:
            self._release(self._watch.finish())
        if self._scores is not None:
            self._scores += self._unreleased
            self._unreleased.clear()
        self.finish = cast(Finish, finish)

    def _echo(self, echo: Echo, scores: list[TokenLogprob] | None) -> None:
        self._echo_due, self._echo_scores = None, []
        self._text = echo.text
        self._decoded = self._released = len(echo.text)
        if self._scores is None or scores is None:
            return
        stream = self._tokenizer.stream()
        offset = 0
        for position, token in enumerate(echo.tokens):
            score = scores[position - 1] if 0 < position <= len(scores) else None
            logprob, top = (None, ()) if score is None else (score.logprob, score.top)
            self._scores.append(ScoredToken(token, logprob, top, offset))
            offset += len(stream.push((token,)))
