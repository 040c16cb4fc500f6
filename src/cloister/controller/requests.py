"""The requests under way, and the one gate through which anything said of them reaches the process that asked.

Answers pass as token ids and are not kept. Whoever says of a request what its level does not allow is ended: its
endpoint raises ProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from cloister.controller.numbering import frontend_of
from cloister.controller.sessions import Session
from cloister.errors import CloisterError, ProtocolError
from cloister.levels import Level
from cloister.messages.generation import Accepted, Failed, SamplingParams, Tokens
from cloister.messages.lifecycle import failed

Holder = Literal["vault", "service", "mpc"]


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
        """All that are under way now; they may end while they are gone through."""
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
        """Forget a request nobody waits for any more."""
        del self._under_way[request.request_id]

    def understood(self, request: Request, prompt_tokens: int) -> None:
        """Its prompt was read by the process it was confided to."""
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
        """Say why there will be no (more of an) answer."""
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
