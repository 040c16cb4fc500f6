"""The requests under way, and the one gate by which messages about them reach frontends. Where the service decodes, it
keeps the answer's ids, for the user's view and at `obfuscated` for the vault's next turn."""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import exp, hypot
from struct import unpack
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from cloister.controller.sessions import Session
from cloister.errors import (
    CloisterError,
    FormRefused,
    InvalidRequest,
    PromptTooLong,
    ProtocolError,
    QueueFull,
    ServiceUnavailable,
    VaultLost,
)
from cloister.fairness import ActiveTenants
from cloister.levels import Decodes, Level
from cloister.messages.controller_detector import NO_LABELS, Labels
from cloister.messages.controller_frontend import Ask, Serving, SubmitTokens, View
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.messages.lifecycle import failed
from cloister.messages.prompts import ObfuscationParams
from cloister.messages.types import FinishReason, SamplingParams, TokenLogprob


class InStep:
    """No token at position p of any sequence leaves before all have one there: at `obfuscated` a service that held one
    back could learn from the user's reaction whether it was the real one. A request's limit of tokens bounds this."""

    def __init__(self, sequences: int) -> None:
        self._held: list[deque[Tokens]] = [deque() for _ in range(sequences)]
        self._ahead = [0] * sequences

    def passed(self, message: Tokens) -> list[Tokens]:
        self._held[message.sequence].append(replace(message, finish=None))
        self._ahead[message.sequence] += len(message.tokens)
        positions = min(self._ahead)
        if message.finish is None:
            return [part for number in range(len(self._held)) for part in self._take(number, positions)]
        *parts, last = [part for number in range(len(self._held)) for part in self._take(number, self._ahead[number])]
        return [*parts, replace(last, finish=message.finish)]

    def _take(self, number: int, positions: int) -> list[Tokens]:
        """Tokens at this number of positions. A longer message is split; one without tokens goes with the next."""
        taken, held = [], self._held[number]
        self._ahead[number] -= positions
        while held and (positions or not self._ahead[number]):
            message = held.popleft()
            if len(message.tokens) > positions:
                held.appendleft(_after(message, positions))
                message = _until(message, positions)
            positions -= len(message.tokens)
            taken.append(message)
        return taken


def _until(message: Tokens, count: int) -> Tokens:
    scores = message.logprobs
    return replace(message, tokens=message.tokens[:count], logprobs=None if scores is None else scores[:count])


def _after(message: Tokens, count: int) -> Tokens:
    """The rest. Fields that come once in a request went with the first part."""
    scores = message.logprobs
    rest = None if scores is None else scores[count:]
    return Tokens(message.request_id, message.tokens[count:], rest, sequence=message.sequence)


Holder = Literal["vault", "service", "mpc"]
REHEARSAL, NEIGHBOUR = "(rehearsal)", "(neighbour)"
# Of the node's trial requests (controller.rehearsal); no key can have such a name (keys.py).
OWN_TENANTS = frozenset({REHEARSAL, NEIGHBOUR})
FRONTEND_BITS = 40
_LOCAL = (1 << FRONTEND_BITS) - 1  # the frontend's own number is in the bits above


def wide(frontend: int, request_id: int) -> int:
    if request_id > _LOCAL:
        raise ProtocolError("A frontend's request id is too large.")
    return frontend << FRONTEND_BITS | request_id


def local(request_id: int) -> int:
    return request_id & _LOCAL


def frontend_of(request_id: int) -> int:
    return request_id >> FRONTEND_BITS


@dataclass
class Request:
    """`holder` generates for it now; `exposed`: its vault answers the service; `shown`: prompt tokens that the service
    gets; `made`: the answer's, by sequence. Several sequences leave `in_step`."""

    request_id: int
    tenant: str
    level: Level
    params: SamplingParams
    holder: Holder
    session: Session | None = None
    salt: str = ""
    accepted: bool = False
    exposed: bool = False
    obfuscation: ObfuscationParams | None = None
    sequences: int = 1
    in_step: InStep | None = None
    prompt_tokens: int = 0
    output_tokens: Counter[int] = field(default_factory=Counter)  # by sequence
    scored: int = 0
    cached: int = 0
    shared: int = 0
    shown: tuple[int, ...] = ()
    made: dict[int, list[int]] = field(default_factory=dict)
    verified: bool = False  # its vault computes the answer again
    alone: bool = False  # and goes on without the service
    withheld: bool = False  # and ended it, because it recites
    asks_verified: bool = False
    labels: Labels = NO_LABELS

    @property
    def owner(self) -> str:
        return self.session.key.owner if self.session else self.tenant

    @property
    def counts(self) -> bool:
        return self.tenant not in OWN_TENANTS


def params_of(ask: Ask | SubmitTokens) -> dict[int, SamplingParams]:
    """Of each answer, by its request's number."""
    return {ask.request_id: ask.params} | {each.request_id: replace(ask.params, seed=each.seed) for each in ask.also}


class RequestMeter:
    """What a request takes (controller.meter). This one counts nothing."""

    def accepted(self, request: Request, prompt_tokens: int, sequences: int) -> None:
        """QuotaExceeded if the prompt is longer than was thought, and its tenant's quota does not cover it."""

    def left(self, request_id: int, request: Request | None = None, *, refused: bool = False) -> None:
        """It ended; None: before it was under way."""


class Requests:
    def __init__(
        self,
        tell: Callable[[Accepted | Tokens | Failed], None],
        serving: Callable[[], Serving],
        ended: Callable[[Request], None],
        meter: RequestMeter | None = None,
    ) -> None:
        self._tell, self._serving, self._ended = tell, serving, ended
        self._meter = meter or RequestMeter()
        self._under_way: dict[int, Request] = {}
        self.active_tenants = ActiveTenants()
        self.prompt_tokens = 0
        self.output_tokens = 0  # of all requests since the start, without the node's own trials

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._under_way.values()))

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._under_way

    def add(self, request: Request) -> None:
        self._under_way[request.request_id] = request
        self.active_tenants.arrive(request.owner)

    def get(self, request_id: int) -> Request | None:
        return self._under_way.get(request_id)

    def held_by(self, holder: Holder) -> list[Request]:
        return [request for request in self if request.holder == holder]

    def drop(self, request: Request, *, refused: bool = False) -> None:
        del self._under_way[request.request_id]
        self._meter.left(request.request_id, request, refused=refused)
        self.active_tenants.leave(request.owner)

    def prompt_accepted(self, request: Request, prompt_tokens: int, sequences: int = 1) -> None:
        if request.accepted:
            raise ProtocolError("A prompt was accepted twice.")
        if prompt_tokens > self._serving().max_context:
            raise ProtocolError("A prompt is longer than the model's context.")
        self._meter.accepted(request, prompt_tokens, sequences)
        self.read(request, prompt_tokens)
        request.sequences = sequences
        request.in_step = InStep(sequences) if sequences > 1 else None
        self.advance(request, Accepted(request.request_id, prompt_tokens, sequences))

    def read(self, request: Request, prompt_tokens: int) -> None:
        request.prompt_tokens = prompt_tokens
        if request.counts:
            self.prompt_tokens += prompt_tokens

    def advance(self, request: Request, message: Accepted | Tokens | Failed) -> None:
        match message:
            case Accepted() if request.accepted:
                return  # at `partitioned` the vault accepted it before the service did
            case Accepted():
                if message.sequences != request.sequences:
                    raise ProtocolError("The request has fewer sequences.")
                request.accepted = True
                self._tell(message)
            case Tokens():
                checked = self._checked(request, message)
                for leaving in (checked,) if request.in_step is None else request.in_step.passed(checked):
                    self._tell(leaving)
                if message.finish is not None:
                    self.end(request)
            case Failed():
                self._tell(message)
                self.end(request)

    def fail(self, request: Request, reason: CloisterError) -> None:
        self.refuse(request.request_id, reason)
        self.end(request)

    def refuse(self, request_id: int, reason: CloisterError) -> None:
        if request_id not in self._under_way:
            self._meter.left(request_id, refused=True)
        self._tell(failed(request_id, reason))

    def end(self, request: Request) -> None:
        self.drop(request, refused=not request.accepted)
        self._ended(request)

    def _checked(self, request: Request, message: Tokens) -> Tokens:
        """As it may leave: tokens of this model, no more than asked for, and numbers rounded to what the API shows."""
        if not request.accepted:
            raise ProtocolError("Tokens came for a prompt that was not read.")
        if message.sequence >= request.sequences:
            raise ProtocolError("The request has no such sequence.")
        if message.progress is not None and not request.level.slow:
            raise ProtocolError("A message has more than tokens.")
        vocabulary, params = self._serving().vocabulary, request.params
        if any(token >= vocabulary for token in message.tokens):
            raise ProtocolError("A token is not of this model.")
        if message.finish == "content_filter" and not request.withheld:
            raise ProtocolError("Only a vault ends an answer for its words.")
        _check_vector(request, message.vector, self._serving().width, message.finish)
        request.output_tokens[message.sequence] += len(message.tokens)
        if request.output_tokens[message.sequence] > params.max_tokens:
            raise ProtocolError("There are more tokens than were asked for.")
        lengths = {request.output_tokens[number] for number in range(request.sequences)}
        if message.finish is not None and len(lengths) > 1:
            raise ProtocolError("The sequences of a request end together.")
        if request.counts:
            self.output_tokens += len(message.tokens)
        if request.level.decodes is Decodes.SERVICE:
            request.made.setdefault(message.sequence, []).extend(message.tokens)
        request.scored += len(message.prompt_logprobs or ())
        if request.scored >= max(request.prompt_tokens, 1):
            raise ProtocolError("More tokens are scored than the prompt has.")
        if message.cached and (request.cached or message.cached >= request.prompt_tokens):
            raise ProtocolError("More tokens were found than the prompt has.")
        if message.shared > message.cached:
            raise ProtocolError("More tokens were found shared than were found.")
        request.cached += message.cached
        request.shared += message.shared
        if message.logprobs is not None and len(message.logprobs) != len(message.tokens):
            raise ProtocolError("The number of logprobs is not the number of tokens.")
        return replace(
            message,
            logprobs=rounded(message.logprobs, params.logprobs, vocabulary),
            prompt_logprobs=rounded(message.prompt_logprobs, params.prompt_logprobs, vocabulary),
        )


def _check_vector(request: Request, vector: bytes, width: int, finish: FinishReason | None) -> None:
    """It comes with the end of an embedding, and has the model's width and the length 1."""
    if len(vector) != 4 * width * bool(request.params.embed and finish):
        raise ProtocolError("A vector is not of this model, or was not asked for.")
    if vector and not abs(hypot(*unpack(f"<{width}f", vector)) - 1) < TOLERANCE:  # NaN included
        raise ProtocolError("An embedding has the length 1.")


DECIMALS = 4
LEAST_LOGPROB = -9999.0  # what OpenAI's API shows for a token that cannot come


def rounded(
    logprobs: tuple[TokenLogprob, ...] | None, wanted: int | None, vocabulary: int
) -> tuple[TokenLogprob, ...] | None:
    """ProtocolError for unasked alternatives and for no logprob: a process could hide other users' data in either."""
    if logprobs is None:
        return None
    if wanted is None:
        raise ProtocolError("The request asked for no logprobs.")
    if any(len(each.top) > wanted or any(token >= vocabulary for token, _ in each.top) for each in logprobs):
        raise ProtocolError("An alternative is not of this model, or was not asked for.")
    if not all(map(_is_distribution, logprobs)):
        raise ProtocolError("Alternatives are distinct, the likeliest first, and at most 1 in all.")
    return tuple(
        TokenLogprob(_rounded(each.logprob), tuple((token, _rounded(value)) for token, value in each.top))
        for each in logprobs
    )


def _is_distribution(each: TokenLogprob) -> bool:
    values = [value for _, value in each.top]
    distinct = len({token for token, _ in each.top}) == len(values)
    return distinct and values == sorted(values, reverse=True) and sum(map(exp, values)) <= 1 + TOLERANCE


def _rounded(logprob: float) -> float:
    if not logprob <= TOLERANCE:  # NaN included
        raise ProtocolError("A logprob is not one.")
    return max(min(round(logprob, DECIMALS), 0.0), LEAST_LOGPROB)


TOLERANCE = 1e-3  # of float32: a sum of probabilities may exceed 1 a little


MAX_RETRY_AFTER_S = 60
_LOST = frozenset(str(VaultLost.because(reason)) for reason in ("vault_lost", "vault_timeout", "link_malformed"))
_FIELDS = frozenset({"prompt", "logit_bias", "max_tokens", "logprobs", "repetition_penalty", "response_format"})
_WORDS = {
    FormRefused.code: "The answer's form is too complex to follow. Simplify it.",
    InvalidRequest.code: "The service cannot do this: see that token ids and logit_bias are of this model.",
    PromptTooLong.code: "Prompt and answer are longer than the service can hold. Shorten the prompt.",
    QueueFull.code: "Too many requests wait already.",
    ServiceUnavailable.code: "The service could not go on with the request. Try again.",
    VaultLost.code: str(VaultLost.because("vault_lost")),
}


def sanitised(failure: Failed) -> Failed:
    """With a text of this module: the service is sealed, and a text that it wrote could carry other users' data out."""
    retry_after = min(max(failure.retry_after, 0), MAX_RETRY_AFTER_S)
    words = _WORDS.get(failure.code)
    if words is None:
        return Failed(failure.request_id, CloisterError.code, "The service failed.")
    if failure.code == VaultLost.code and failure.message in _LOST:
        words = failure.message
    param = failure.param if failure.param in _FIELDS else None
    return Failed(failure.request_id, failure.code, words, retry_after, param=param)


class Frontend(Protocol):
    def send(self, message: msgspec.Struct) -> None: ...
    def send_soon(self, message: msgspec.Struct) -> None: ...


class Frontends:
    def __init__(self) -> None:
        self._by_number: dict[int, Frontend] = {}
        self._numbers = itertools.count(1)

    def add(self, frontend: Frontend) -> int:
        number = next(self._numbers)
        self._by_number[number] = frontend
        return number

    def remove(self, number: int) -> None:
        self._by_number.pop(number, None)

    def tell(self, message: Accepted | Tokens | Failed | View) -> None:
        if frontend := self._by_number.get(frontend_of(message.request_id)):
            # A step brings tokens for many requests: the frontend is woken once for all of them.
            frontend.send_soon(replace(message, request_id=local(message.request_id)))

    def send(self, number: int, message: msgspec.Struct) -> None:
        if frontend := self._by_number.get(number):
            frontend.send(message)
