"""Verified decoding: the service's tokens leave when the request's own vault computed the same.
`all`: then alone, and all answers of a tenant a chunk at a time: which of two is first would be the service's to say.
`late`: at once, but at most a chunk ahead of the vault, and an answer's end waits for it. `sample`:
as `late`, for a share of the requests that this process draws. One that asks for it, or whose vault ends it if it
recites, is verified as at `all`. A service that deviates is ended; after many such ends it stays, all is at `all`.
An answer that is verified as at `all` never fails by the service: its vault goes on alone, from what is verified."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import SystemRandom

from msgspec.structs import replace

from cloister.controller.deviations import Deviations
from cloister.controller.requests import Request, rounded
from cloister.controller.service import Service
from cloister.errors import Deviation, ProtocolError, VaultLost
from cloister.messages.controller_service import GeneratePartitioned, GenerateVariants
from cloister.messages.controller_vault import Claimed, FinishAlone, Verified
from cloister.messages.generation import Failed, Tokens
from cloister.messages.types import FinishReason, TokenLogprob
from cloister.verify_mode import VerifyMode

log = logging.getLogger(__name__)

CHUNK = 16  # tokens of a sequence that leave together, and that are ahead of the vault at most
Order = GeneratePartitioned | GenerateVariants


@dataclass(slots=True, repr=False)
class _Claim:
    token: int
    logprob: TokenLogprob | None
    released: bool = False


@dataclass(slots=True, repr=False)
class _Stream:
    """One sequence's claims that are not verified yet; the first `sent` are with the vault. `held`: verified, and not
    released before their round."""

    claims: deque[_Claim] = field(default_factory=deque)
    sent: int = 0
    verified: list[int] = field(default_factory=list)
    held: deque[_Claim] = field(default_factory=deque)

    def is_due(self, longest: int) -> bool:
        """A chunk is no longer than what was claimed before, so the answer comes at no less than half its pace."""
        before = len(self.verified) + self.sent
        return len(self.claims) - self.sent >= min(longest, max(CHUNK, before))


@dataclass(slots=True, eq=False, repr=False)
class _Claims:
    """`order`: what the service was asked. `waits`: for a service, since the last one ended. `end`: once verified.
    Of a `whole` one nothing leaves before it is verified; `alone`: its vault goes on without the service."""

    request: Request
    order: Order
    at_once: bool
    streams: list[_Stream]
    finish: FinishReason | None = None
    end: FinishReason | None = None
    asked_for_end: bool = False
    waits: bool = False
    tried_again: bool = False
    alone: bool = False

    @property
    def in_flight(self) -> bool:
        return any(stream.sent for stream in self.streams) or self.asked_for_end

    @property
    def may_go_alone(self) -> bool:
        """Nothing is out that is not verified. The node's own trials shall fail."""
        released = any(claim.released for stream in self.streams for claim in stream.claims)
        return not self.at_once and self.request.counts and not released

    @property
    def has_chunk(self) -> bool:
        return self.end is not None or all(len(stream.held) >= CHUNK for stream in self.streams)

    def resumed(self) -> Order:
        made = tuple(tuple(stream.verified) for stream in self.streams)
        if isinstance(self.order, GenerateVariants):
            return replace(self.order, made=made)
        return replace(self.order, made=made[0])


class Verification:
    """`release` passes a message on to the user. `deviated` takes a request from the service, or ends this if so said;
    with a reason it ends the request and its vault."""

    def __init__(
        self,
        mode: VerifyMode,
        release: Callable[[Request, Tokens], None],
        deviated: Callable[[Request, Deviation | None, bool], None],
    ) -> None:
        self._mode, self._release, self._deviated = mode, release, deviated
        self.longest = CHUNK
        self.equal_bits = True  # whether a vault computes what the service computes; else it decodes alone
        self._draw = SystemRandom().random
        self._claims: dict[int, _Claims] = {}
        self.deviations = Deviations()
        self._round: dict[str, list[_Claims]] = {}  # by owner: answers of which a chunk leaves next, together
        self._releasing = False

    @property
    def always(self) -> bool:
        """Whether each answer is verified as at `all`."""
        return self._mode.name == "all" or self.deviations.restarted_often

    def begin(self, request: Request, order: Order, service: Service | None) -> bool:
        """Whether this request is verified: the service does not learn it."""
        assert request.session is not None
        alone = request.session.vault.alone or self.deviations.too_many_of(request.owner)
        whole = alone or self._is_whole(request)
        alone = alone or (whole and not self.equal_bits)
        if not whole and self._draw() >= self._mode.share:
            return False
        streams = [_Stream() for _ in range(request.sequences)]
        claims = self._claims[request.request_id] = _Claims(request, order, not whole, streams)
        if alone or (whole and service is None):
            self._finish_alone(claims)
        return True

    def _is_whole(self, request: Request) -> bool:
        return self.always or request.asks_verified or request.params.stop_recitation

    def goes_alone(self, request: Request) -> bool:
        """From now on, where nothing is out that is not verified."""
        claims = self._claims.get(request.request_id)
        if claims is None or not (claims.alone or claims.may_go_alone):
            return False
        if not claims.alone:
            self._finish_alone(claims)
            self._deviated(request, None, False)
        return True

    def _finish_alone(self, claims: _Claims) -> None:
        session = claims.request.session
        assert session is not None
        claims.alone = claims.request.alone = True
        claims.waits = claims.asked_for_end = False
        for stream in claims.streams:
            stream.claims.clear()
            stream.sent = 0
        session.vault.send(FinishAlone(claims.request.request_id))

    def forget(self, request_id: int) -> None:
        if (claims := self._claims.pop(request_id, None)) is not None:
            self._go_round(claims.request.owner)

    def claimed(self, request: Request, message: Tokens, vocabulary: int) -> None:
        """Only what a request allows is kept: a claim is bounded before it is stored."""
        claims = self._claims[request.request_id]
        if message.sequence >= len(claims.streams) or claims.finish is not None or claims.waits:
            raise ProtocolError("The request has no such sequence, or has ended.")
        stream = claims.streams[message.sequence]
        whole = 1 + len(stream.verified) + len(stream.claims) + len(message.tokens)
        if whole > request.params.max_tokens or any(token >= vocabulary for token in message.tokens):
            raise ProtocolError("A token is not of this model, or was not asked for.")
        if message.prompt_logprobs is not None or message.progress is not None:
            raise ProtocolError("A message has more than tokens.")
        scores = message.logprobs or (None,) * len(message.tokens)
        if len(scores) != len(message.tokens):
            raise ProtocolError("The number of logprobs is not the number of tokens.")
        stream.claims += map(_Claim, message.tokens, scores)
        claims.finish = message.finish
        if claims.at_once:
            self._release_ahead(claims, message.sequence)
        self._send(claims)

    def _release_ahead(self, claims: _Claims, number: int) -> None:
        """The last token waits for the end, with which it belongs: it may be a stop token."""
        waiting = list(claims.streams[number].claims)
        ahead = waiting[: min(CHUNK, len(waiting) - (claims.finish is not None))]
        self._let_out(claims, number, [claim for claim in ahead if not claim.released])

    def _let_out(self, claims: _Claims, number: int, honest: list[_Claim], finish: FinishReason | None = None) -> None:
        if not honest and finish is None:
            return
        for claim in honest:
            claim.released = True
        scores = tuple(claim.logprob for claim in honest if claim.logprob is not None) or None
        request_id, tokens = claims.request.request_id, tuple(claim.token for claim in honest)
        self._release(claims.request, Tokens(request_id, tokens, scores, finish=finish, sequence=number))

    def _send(self, claims: _Claims) -> None:
        """To the vault: what is claimed, once there is a chunk of it or the answer has ended."""
        session, ended = claims.request.session, claims.finish is not None
        assert session is not None
        longest = CHUNK if self._mode.name == "late" else self.longest
        if not ended and not any(stream.is_due(longest) for stream in claims.streams):
            return
        for number, stream in enumerate(claims.streams):
            while new := [claim.token for claim in list(stream.claims)[stream.sent :][:longest]]:
                session.vault.send(Claimed(claims.request.request_id, tuple(new), number))
                stream.sent += len(new)
        if ended and not claims.in_flight:
            claims.asked_for_end = True
            session.vault.send(Claimed(claims.request.request_id, (), len(claims.streams) - 1))

    def verified(self, request: Request, message: Verified, vocabulary: int, service: Service | None) -> None:
        """A vault's logprobs are checked here: later it may be another process's message that releases them."""
        claims = self._claims.get(request.request_id)
        if claims is None or message.sequence >= len(claims.streams) or claims.end is not None:
            raise ProtocolError("A vault verified what nothing claimed.")
        if message.logprobs is not None and len(message.logprobs) != len(message.tokens):
            raise ProtocolError("The number of logprobs is not the number of tokens.")
        rounded(message.logprobs, request.params.logprobs, vocabulary)
        if claims.alone:
            self._add_alone(claims, message, vocabulary)
            return
        stream = claims.streams[message.sequence]
        empty = not message.tokens and not claims.asked_for_end and message.finish != "content_filter"
        if len(message.tokens) > stream.sent or empty:
            raise ProtocolError("A vault verified more than was claimed.")
        claims.asked_for_end = claims.asked_for_end and bool(message.tokens)
        before, honest = len(stream.verified), list(map(_Claim, message.tokens, _scores(message)))
        claimed = [stream.claims[at] for at in range(len(honest))]
        position, why = before + 2, "The service queried the vault for something else"
        deviates = message.asked_otherwise
        if not deviates:
            for one, other in zip(claimed, honest, strict=True):
                if deviates := (one.token, one.logprob) != (other.token, other.logprob):
                    why = f"The honest token has the id {other.token}"
                    break
                position += 1
        if not deviates and message.finish != "content_filter":
            rest = [each for each in claims.streams if each is not stream or len(honest) < len(each.claims)]
            over = not claims.asked_for_end and not any(each.claims for each in rest)
            uneven = len({len(each.verified) + len(each.claims) for each in claims.streams}) > 1
            position, why = before + len(honest) + 1, "The answer does not end there"
            deviates = message.finish != (claims.finish if over else None) or bool(message.finish and uneven)
        if deviates:
            self._deviates(claims, message, vocabulary, position, why)
            return
        for claim in claimed:
            stream.claims.popleft()
            stream.verified.append(claim.token)
        stream.sent -= len(claimed)
        self._go_on(claims, message, claimed, service)

    def _go_on(self, claims: _Claims, message: Verified, honest: list[_Claim], service: Service | None) -> None:
        waiting = [claim for claim in honest if not claim.released]
        stream = claims.streams[message.sequence]
        if message.finish == "content_filter":
            stream.held += waiting
            self._withhold(claims)
            return
        if claims.at_once:
            self._let_out(claims, message.sequence, waiting, message.finish)
        else:
            stream.held += waiting
            claims.end = message.finish
            self._go_round(claims.request.owner)
        if claims.request.request_id in self._claims:
            if claims.at_once:
                self._release_ahead(claims, message.sequence)
            if claims.waits:
                self._resume(claims, service)

    def _add_alone(self, claims: _Claims, message: Verified, vocabulary: int) -> None:
        """What the vault says is the answer. Sequences end together: the service may have had one verified further."""
        stream = claims.streams[message.sequence]
        whole = 1 + len(stream.verified) + len(message.tokens)
        if whole > claims.request.params.max_tokens or any(token >= vocabulary for token in message.tokens):
            raise ProtocolError("A token is not of this model, or was not asked for.")
        stream.verified += message.tokens
        stream.held += map(_Claim, message.tokens, _scores(message))
        if message.finish == "content_filter":
            self._withhold(claims)
            return
        if message.finish is not None:
            least = min(len(each.verified) for each in claims.streams)
            for each in claims.streams:
                for _ in range(len(each.verified) - least):
                    each.held.pop()
            claims.end = message.finish
        self._go_round(claims.request.owner)

    def _withhold(self, claims: _Claims) -> None:
        """The vault ends it before the chunk in which it recites: whole chunks leave, as if there were no more."""
        if not claims.request.params.stop_recitation:
            raise ProtocolError("A vault ends an answer that nothing asked it to watch.")
        claims.request.withheld, claims.asked_for_end, claims.waits = True, False, False
        claims.finish = claims.end = "content_filter"
        [stream] = claims.streams
        stream.claims.clear()
        stream.sent = 0
        for _ in range(len(stream.verified) % CHUNK):
            stream.held.pop()
        self._go_round(claims.request.owner)

    def _go_round(self, owner: str) -> None:
        """A chunk of each answer that was there when the round began, by admission, once all of these have one."""
        if self._releasing:  # the end of an answer calls again
            return
        while True:
            mine = [each for each in self._claims.values() if each.request.owner == owner and not each.at_once]
            before = self._round.pop(owner, [])
            members = [each for each in mine if each in before] or mine
            if not members:
                return
            if not all(each.has_chunk for each in members):
                self._round[owner] = members
                return
            self._releasing = True
            try:
                for claims in sorted(members, key=lambda each: each.request.request_id):
                    self._let_chunk_out(claims)
            finally:
                self._releasing = False

    def _let_chunk_out(self, claims: _Claims) -> None:
        chunks = [[stream.held.popleft() for _ in range(min(CHUNK, len(stream.held)))] for stream in claims.streams]
        rest = any(stream.held for stream in claims.streams)
        for number, chunk in enumerate(chunks):
            last = number == len(chunks) - 1 and not rest
            self._let_out(claims, number, chunk, claims.end if last else None)

    def _deviates(self, claims: _Claims, message: Verified, vocabulary: int, position: int, honest: str) -> None:
        """The service's own token stays here: it may be another user's word. Where nothing else left, nor does the
        position, which the service chose."""
        request = claims.request
        self.deviations.note(request.owner)
        log.error("The service deviated at token %d of an answer.", position)
        reason = None if claims.may_go_alone else Deviation(f"Token {position} of the answer was altered. {honest}.")
        if reason is None:
            self._finish_alone(claims)
            self._add_alone(claims, message, vocabulary)
        else:
            self.forget(request.request_id)
        restarts = self.deviations.restarts()
        if self.deviations.restarted_often:
            for each in self._claims.values():
                each.at_once = False
        self._deviated(request, reason, restarts)

    # ---- a service that ends, and the next one

    def goes_on_after(self, request: Request, failure: Failed, service: Service) -> bool:
        """A request that the service ended: its vault goes on alone. One whose tokens leave at once begins again once,
        from what is verified."""
        if self.goes_alone(request):
            return True
        claims = self._claims[request.request_id]
        aborted = failure.code == VaultLost.code
        if aborted or claims.tried_again or not self.survives(request):
            self.deviations.note(request.owner, aborted=aborted)
            return False
        claims.tried_again = True
        self._resume(claims, service)
        return True

    def survives(self, request: Request) -> bool:
        """Whether the next service goes on from what is verified: not where the user has more than that. If that one
        ends, too, the vault goes on alone."""
        claims = self._claims.get(request.request_id)
        if claims is None:
            return request.holder == "vault" and self._is_whole(request)
        if claims.alone or claims.finish is not None:
            return True
        for stream in claims.streams:
            if any(claim.released for claim in list(stream.claims)[stream.sent :]):
                return False
            while len(stream.claims) > stream.sent:
                stream.claims.pop()
        if claims.tried_again and self.goes_alone(request):
            return True
        claims.waits = True
        claims.tried_again = claims.tried_again or not claims.at_once
        return True

    def service_gone(self) -> None:
        self.deviations.service_gone()

    def service_up(self, service: Service) -> None:
        for claims in list(self._claims.values()):
            if claims.waits:
                self._resume(claims, service)

    def _resume(self, claims: _Claims, service: Service | None) -> None:
        if service is not None and not claims.in_flight:
            claims.waits = False
            service.send(claims.resumed())


def _scores(message: Verified) -> tuple[TokenLogprob | None, ...]:
    return message.logprobs or (None,) * len(message.tokens)
