"""Verified decoding: the service's tokens leave when the request's own vault computed the same.
`all`: then alone, and all answers of a tenant a chunk at a time: which of two is first would be the service's to say.
`late`: at once, but at most a chunk ahead of the vault, and an answer's end waits for it. `sample`:
as `late`, for a share of the requests that this process draws. One that asks for it, or whose vault ends it if it
recites, is verified as at `all`. A service that deviates is ended; after many such ends it stays, all is at `all`."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import SystemRandom
from time import monotonic

from msgspec.structs import replace

from cloister.controller.requests import Request
from cloister.controller.service import Service
from cloister.errors import CloisterError, Deviation, ProtocolError, ServiceUnavailable, VaultLost
from cloister.messages.controller_service import GeneratePartitioned, GenerateVariants
from cloister.messages.controller_vault import Claimed, Verified
from cloister.messages.generation import Failed, Tokens
from cloister.messages.types import FinishReason, TokenLogprob
from cloister.verify_mode import VerifyMode

log = logging.getLogger(__name__)

CHUNK = 16  # tokens of a sequence that leave together, and that are ahead of the vault at most
MOST_KEPT = 1024  # troubles of one tenant that are remembered
MOST_TROUBLES = 3  # deviations and aborts of one tenant in an hour: its own vaults may be what deviates
MOST_RESTARTS = 12  # for deviations in an hour, of all tenants: accounts whose vaults lie must not keep the node down
HOUR_S = 3600.0
FAULT_S = 2.0  # a GPU's fault ends vaults first, then the service
Order = GeneratePartitioned | GenerateVariants


@dataclass(frozen=True, slots=True, eq=False)
class _Trouble:
    at: float
    aborted: bool


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
    """`order`: what the service was asked. `waits`: for a service, since the last one ended. `end`: once verified."""

    request: Request
    order: Order
    at_once: bool
    streams: list[_Stream]
    finish: FinishReason | None = None
    end: FinishReason | None = None
    asked_for_end: bool = False
    waits: bool = False
    tried_again: bool = False

    @property
    def in_flight(self) -> bool:
        return any(stream.sent for stream in self.streams) or self.asked_for_end

    @property
    def has_chunk(self) -> bool:
        return self.end is not None or all(len(stream.held) >= CHUNK for stream in self.streams)

    def resumed(self) -> Order:
        made = tuple(tuple(stream.verified) for stream in self.streams)
        if isinstance(self.order, GenerateVariants):
            return replace(self.order, made=made)
        return replace(self.order, made=made[0])


class Verification:
    """`release` passes a message on to the user; `deviated` ends a request, its vault and, if so said, the service."""

    def __init__(
        self,
        mode: VerifyMode,
        release: Callable[[Request, Tokens], None],
        deviated: Callable[[Request, CloisterError, bool], None],
    ) -> None:
        self._mode, self._release, self._deviated = mode, release, deviated
        self.longest = CHUNK
        self._draw = SystemRandom().random
        self._claims: dict[int, _Claims] = {}
        self._troubles: dict[str, deque[_Trouble]] = {}
        self._restarts: deque[float] = deque(maxlen=MOST_RESTARTS)
        self._struck: set[str] = set()  # owners of answers that were aborted just before the service ended
        self._round: dict[str, list[_Claims]] = {}  # by owner: answers of which a chunk leaves next, together
        self._releasing = False

    def check(self, owner: str) -> None:
        """Raise if this tenant's vaults and the service disagreed too often: one user must not end it for all, and
        each abort could tell this tenant something."""
        recent = self._troubles.get(owner, deque())
        while recent and recent[0].at < monotonic() - HOUR_S:
            recent.popleft()
        if len(recent) >= MOST_TROUBLES:
            raise ServiceUnavailable(
                "This tenant's vaults and the service disagreed too often.", hint="Ask the server's operator."
            )

    def begin(self, request: Request, order: Order) -> bool:
        """Whether this request is verified: the service does not learn it."""
        whole = request.asks_verified or request.params.stop_recitation or self._restarted_often
        whole = whole or self._mode.name == "all"
        if not whole and self._draw() >= self._mode.share:
            return False
        streams = [_Stream() for _ in range(request.sequences)]
        self._claims[request.request_id] = _Claims(request, order, not whole, streams)
        return True

    @property
    def _restarted_often(self) -> bool:
        return len(self._restarts) == MOST_RESTARTS and self._restarts[0] > monotonic() - HOUR_S

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

    def verified(self, request: Request, message: Verified, service: Service | None) -> None:
        claims = self._claims.get(request.request_id)
        if claims is None or message.sequence >= len(claims.streams):
            raise ProtocolError("A vault verified what nothing claimed.")
        stream = claims.streams[message.sequence]
        empty = not message.tokens and not claims.asked_for_end and message.finish != "content_filter"
        if len(message.tokens) > stream.sent or empty:
            raise ProtocolError("A vault verified more than was claimed.")
        if message.logprobs is not None and len(message.logprobs) != len(message.tokens):
            raise ProtocolError("The number of logprobs is not the number of tokens.")
        claims.asked_for_end = claims.asked_for_end and bool(message.tokens)
        if message.asked_otherwise:
            self._deviates(claims, len(stream.verified) + 2, "The service queried the vault for something else")
            return
        scores = message.logprobs or (None,) * len(message.tokens)
        honest: list[_Claim] = []
        for token, score in zip(message.tokens, scores, strict=True):
            claim = stream.claims.popleft()
            stream.sent -= 1
            if (claim.token, claim.logprob) != (token, score):
                self._deviates(claims, len(stream.verified) + 2, f"The honest token has the id {token}")
                return
            stream.verified.append(token)
            honest.append(claim)
        if message.finish == "content_filter":
            stream.held += honest
            self._withhold(claims)
            return
        over = not claims.in_flight and not any(each.claims for each in claims.streams)
        if message.finish != (claims.finish if over else None):
            self._deviates(claims, len(stream.verified) + 1, "The answer does not end there")
            return
        if claims.at_once:
            late = [claim for claim in honest if not claim.released]
            self._let_out(claims, message.sequence, late, message.finish)
        else:
            stream.held += (claim for claim in honest if not claim.released)
            claims.end = message.finish
            self._go_round(request.owner)
        if request.request_id in self._claims:
            if claims.at_once:
                self._release_ahead(claims, message.sequence)
            if claims.waits:
                self._resume(claims, service)

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

    def _deviates(self, claims: _Claims, position: int, honest: str) -> None:
        """The service's own token stays here: it may be another user's word."""
        request = claims.request
        self._note_trouble(request)
        log.error("The service deviated at token %d of an answer.", position)
        self.forget(request.request_id)
        if restarts := not self._restarted_often:
            self._restarts.append(monotonic())
        if self._restarted_often:
            log.error("%d deviations in an hour: now every answer is verified before it leaves.", MOST_RESTARTS)
            for each in self._claims.values():
                each.at_once = False
        self._deviated(request, Deviation(f"Token {position} of the answer was altered. {honest}."), restarts)

    def _note_trouble(self, request: Request, *, aborted: bool = False) -> None:
        self._troubles.setdefault(request.owner, deque(maxlen=MOST_KEPT)).append(_Trouble(monotonic(), aborted))

    # ---- a service that ends, and the next one

    def goes_on_after(self, request: Request, failure: Failed, service: Service) -> bool:
        """A request that the service ended begins again once, from what is verified: the user sees a delay."""
        claims = self._claims[request.request_id]
        aborted = failure.code == VaultLost.code
        if aborted or claims.tried_again or not self.survives(request):
            self._note_trouble(request, aborted=aborted)
            return False
        claims.tried_again = True
        self._resume(claims, service)
        return True

    def survives(self, request: Request) -> bool:
        """Whether the next service goes on from what is verified: not where the user has more than that."""
        claims = self._claims.get(request.request_id)
        if claims is None or request.owner in self._struck:
            return False
        if claims.finish is not None:
            return True
        for stream in claims.streams:
            if any(claim.released for claim in list(stream.claims)[stream.sent :]):
                return False
            while len(stream.claims) > stream.sent:
                stream.claims.pop()
        claims.waits = True
        return True

    def service_gone(self) -> None:
        """Aborts just before its end are one trouble: the same fault may have caused them all. Their tenants' other
        answers end, too, so which ones were aborted tells nothing."""
        for owner, troubles in self._troubles.items():
            late = [one for one in troubles if one.aborted and one.at >= monotonic() - FAULT_S]
            for one in late[1:]:
                troubles.remove(one)
            if late:
                self._struck.add(owner)

    def service_up(self, service: Service) -> None:
        self._struck.clear()
        for claims in list(self._claims.values()):
            if claims.waits:
                self._resume(claims, service)

    def _resume(self, claims: _Claims, service: Service | None) -> None:
        if service is not None and not claims.in_flight:
            claims.waits = False
            service.send(claims.resumed())
