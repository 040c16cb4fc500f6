"""Requests at the level `mpc`: they go to the clerk where others go to a vault, and nobody else hears of them.

The clerk may only speak of requests it has, in the order of their stages; one that lies is ended (its channel raises).
Prompts pass as opaque bytes, answers as token ids; neither is kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from cloister.controller.numbering import front_of
from cloister.errors import CloisterError, LevelUnavailable, ProtocolError, VaultLost
from cloister.messages.failure import failed
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.messages.vault import Confide, Understood


class Clerk(Protocol):
    """The clerk's process, as far as requests are concerned."""

    def confide(self, confided: Confide) -> None:
        """Give it a prompt; ServiceUnavailable while it is not up."""

    def send(self, message: msgspec.Struct) -> None: ...


class ClerkDesk:
    """`tell` reaches the front that a request came from."""

    def __init__(self, tell: Callable[[Accepted | Tokens | Failed], None], vocabulary: Callable[[], int]) -> None:
        self._tell = tell
        self._vocabulary = vocabulary
        self._clerk: Clerk | None = None
        self._accepted: dict[int, bool] = {}
        self.prompt_tokens = 0
        self.output_tokens = 0

    def __len__(self) -> int:
        return len(self._accepted)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._accepted

    def open(self, clerk: Clerk) -> None:
        """There is a clerk, or somebody who starts one when it is asked for."""
        self._clerk = clerk

    def ask(self, confided: Confide) -> None:
        """Hand a prompt over, or tell its front why not."""
        try:
            if self._clerk is None:
                raise LevelUnavailable("This server does not offer the level mpc.", param="protection")
            self._clerk.confide(confided)
        except CloisterError as reason:
            self._tell(failed(confided.request_id, reason))
        else:
            self._accepted[confided.request_id] = False

    def cancel(self, request_id: int) -> bool:
        """Whether the request was here; it is no more."""
        if self._accepted.pop(request_id, None) is None:
            return False
        assert self._clerk is not None
        self._clerk.send(Cancel(request_id))
        return True

    def front_gone(self, number: int) -> None:
        """Nobody waits for the requests of this front any more."""
        for request_id in [one for one in self._accepted if front_of(one) == number]:
            self.cancel(request_id)

    def hear(self, message: msgspec.Struct) -> None:
        """What the clerk says of a request; of one that was cancelled a moment ago it may still speak."""
        if not isinstance(message, Understood | Tokens | Failed):
            raise ProtocolError("The clerk sent a message out of turn.")
        request_id = message.request_id
        if (accepted := self._accepted.get(request_id)) is None:
            return
        match message:
            case Understood():
                if accepted:
                    raise ProtocolError("The clerk understood a prompt twice.")
                self._accepted[request_id] = True
                self.prompt_tokens += message.prompt_tokens
                self._tell(Accepted(request_id, message.prompt_tokens))
            case Tokens():
                if not accepted:
                    raise ProtocolError("The clerk answers what it has not read.")
                if any(token >= self._vocabulary() for token in message.tokens):
                    raise ProtocolError("A token is not of this model.")
                self.output_tokens += len(message.tokens)
                self._tell(message)
                if message.finish is not None:
                    del self._accepted[request_id]
            case Failed():
                self._tell(message)
                del self._accepted[request_id]

    def clerk_gone(self) -> None:
        """The clerk ended, and every prompt it held with it."""
        requests, self._accepted = self._accepted, {}
        for request_id in requests:
            self._tell(failed(request_id, VaultLost.because("vault_lost")))
