"""The requests that wait for a vault, those under way, and the one gate through which what is said of them gets out.

Requests wait unread; answers pass as token ids and are not kept. A process that says what a request's level does not
allow is ended: its endpoint raises ProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from cloister.controller.sessions import Session
from cloister.errors import (
    CloisterError,
    InvalidRequest,
    PromptTooLong,
    ProtocolError,
    QueueFull,
    ServiceUnavailable,
    VaultLost,
)
from cloister.levels import Level
from cloister.messages.frontend import Ask
from cloister.messages.generation import Accepted, Failed, SamplingParams, Tokens
from cloister.messages.lifecycle import failed
from cloister.messages.prompts import LockedPrompt

Holder = Literal["vault", "service", "mpc"]

FRONTEND_BITS = 40
_LOCAL = (1 << FRONTEND_BITS) - 1
"""A frontend counts its own requests; elsewhere their ids carry the frontend's number too, in the bits above."""


def wide(frontend: int, request_id: int) -> int:
    """The controller's number for a frontend's request."""
    if request_id > _LOCAL:
        raise ProtocolError("A frontend's request id is too large.")
    return frontend << FRONTEND_BITS | request_id


def local(request_id: int) -> int:
    """The frontend's own number."""
    return request_id & _LOCAL


def frontend_of(request_id: int) -> int:
    """Which frontend it came from."""
    return request_id >> FRONTEND_BITS


@dataclass(frozen=True, repr=False)
class Asked:
    """What a frontend asks for, and the prompt as its reader will get it."""

    ask: Ask
    prompt: bytes | LockedPrompt

    @property
    def request_id(self) -> int:
        return self.ask.request_id


class VaultQueue:
    """First come, first served, and no more than may wait. `serve` takes a request, or raises QueueFull while there is
    no vault for it."""

    def __init__(self, most: int, serve: Callable[[Asked], None]) -> None:
        self._most = most
        self._serve = serve
        self._waiting: dict[int, Asked] = {}
        self._moving = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def enter(self, asked: Asked) -> None:
        """Serve the request now, or let it wait behind those who came before."""
        if not self._waiting:
            try:
                self._serve(asked)
                return
            except QueueFull:
                pass
        if len(self._waiting) >= self._most:
            raise QueueFull("All vaults are in use and too many requests wait for one.", retry_after=2)
        self._waiting[asked.request_id] = asked

    def leave(self, request_id: int) -> bool:
        """Whether the request waited; it does no more."""
        return self._waiting.pop(request_id, None) is not None

    def leave_all_of(self, frontend: int) -> None:
        for request_id in [one for one in self._waiting if frontend_of(one) == frontend]:
            self.leave(request_id)

    def move(self) -> None:
        """A vault may be free: serve as many as there are vaults for."""
        if self._moving:  # serving one may end a session, which calls again
            return
        self._moving = True
        try:
            while self._waiting:
                asked = next(iter(self._waiting.values()))
                try:
                    self._serve(asked)
                except QueueFull:
                    return
                self._waiting.pop(asked.request_id, None)
        finally:
            self._moving = False


@dataclass
class Request:
    """One request. `holder` is whoever generates for it now; `exposed`: its vault answers the service's queries."""

    request_id: int
    tenant: str
    level: Level
    params: SamplingParams
    holder: Holder
    session: Session | None = None
    accepted: bool = False
    exposed: bool = False


class Requests:
    """`tell` reaches the process that asked; `ended` is told of every request that comes to its end."""

    def __init__(
        self,
        tell: Callable[[Accepted | Tokens | Failed], None],
        vocabulary: Callable[[], int],
        ended: Callable[[Request], None],
    ) -> None:
        self._tell = tell
        self._vocabulary = vocabulary
        self._ended = ended
        self._under_way: dict[int, Request] = {}
        self.prompt_tokens = 0
        self.output_tokens = 0
        """Counted here where the service does not count: in vaults and at `mpc`."""

    def __iter__(self) -> Iterator[Request]:
        """All that are under way now; they may end during the iteration."""
        return iter(list(self._under_way.values()))

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._under_way

    def add(self, request: Request) -> None:
        self._under_way[request.request_id] = request

    def get(self, request_id: int) -> Request | None:
        return self._under_way.get(request_id)

    def of_frontend(self, number: int) -> list[Request]:
        return [request for request in self if frontend_of(request.request_id) == number]

    def held_by(self, holder: Holder) -> list[Request]:
        return [request for request in self if request.holder == holder]

    def drop(self, request: Request) -> None:
        del self._under_way[request.request_id]

    def understood(self, request: Request, prompt_tokens: int) -> None:
        if request.accepted:
            raise ProtocolError("A prompt was understood twice.")
        self.prompt_tokens += prompt_tokens
        self.advance(request, Accepted(request.request_id, prompt_tokens))

    def advance(self, request: Request, message: Accepted | Tokens | Failed) -> None:
        """Pass on what its holder says, as far as that may leave."""
        match message:
            case Accepted() if request.accepted:
                return  # at `partitioned` the vault said so before the service did
            case Accepted():
                request.accepted = True
                self._tell(message)
            case Tokens():
                self._check(request, message)
                if request.holder != "service":
                    self.output_tokens += len(message.tokens)
                self._tell(message)
                if message.finish is not None:
                    self.end(request)
            case Failed():
                self._tell(message)
                self.end(request)

    def fail(self, request: Request, reason: CloisterError) -> None:
        self.refuse(request.request_id, reason)
        self.end(request)

    def refuse(self, request_id: int, reason: CloisterError) -> None:
        self._tell(failed(request_id, reason))

    def end(self, request: Request) -> None:
        self.drop(request)
        self._ended(request)

    def _check(self, request: Request, message: Tokens) -> None:
        """The stage between whoever decodes and whoever asked: nothing leaves that is not a token of this model.

        Verified decoding holds tokens back here until the vault has replayed them.
        """
        if not request.accepted:
            raise ProtocolError("Tokens came for a prompt that nobody has read.")
        if message.sequence:
            raise ProtocolError("Only one sequence of this request is for its user.")
        if message.progress is not None and not request.level.slow:
            raise ProtocolError("More is said than tokens.")
        vocabulary = self._vocabulary()
        if any(token >= vocabulary for token in message.tokens):
            raise ProtocolError("A token is not of this model.")


MAX_RETRY_AFTER_S = 60

_LOST = frozenset(str(VaultLost.because(reason)) for reason in ("vault_lost", "vault_timeout", "link_malformed"))
_FIELDS = frozenset({"prompt", "logit_bias", "max_tokens", "logprobs", "repetition_penalty"})
_WORDS = {
    InvalidRequest.code: "The service cannot do this: see that token ids and logit_bias are of this model.",
    PromptTooLong.code: "Prompt and answer are longer than the service can hold. Shorten the prompt.",
    QueueFull.code: "Too many requests wait already.",
    ServiceUnavailable.code: "The service could not go on with the request. Try again.",
    VaultLost.code: str(VaultLost.because("vault_lost")),
}


def in_own_words(told: Failed) -> Failed:
    """The same failure if its code is one the service has, without any text that is not ours to the letter.

    The service is sealed: text it wrote itself would be a way out for what it holds of other users.
    """
    retry_after = min(max(told.retry_after, 0), MAX_RETRY_AFTER_S)
    words = _WORDS.get(told.code)
    if words is None:
        return Failed(told.request_id, CloisterError.code, "The service failed.")
    if told.code == VaultLost.code and told.message in _LOST:
        words = told.message
    param = told.param if told.param in _FIELDS else None
    return Failed(told.request_id, told.code, words, retry_after, param=param)
