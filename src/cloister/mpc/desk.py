"""A party's desk: the sessions of its clients, what each may do, and when a run has its turn.

A session belongs to the connection that opened it and ends with it; no message can name another's. Results go to that
connection and nowhere else. A run begins when every party has been asked for the same one: followers tell the leader
that they are ready, the leader says whose turn it is, and all engines run everything in that order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Protocol

import msgspec

from cloister.errors import (
    CloisterError,
    InvalidRequest,
    PartyLost,
    ProtocolError,
    QueueFull,
    RequestTimeout,
    ServiceUnavailable,
)
from cloister.messages.mpc import (
    Close,
    Done,
    Open,
    Opened,
    Piece,
    Progress,
    Put,
    Ready,
    Refused,
    Result,
    Run,
    Turn,
    Withdraw,
)
from cloister.mpc.config import PartiesConfig
from cloister.mpc.desk_session import Session
from cloister.mpc.line import Line

log = logging.getLogger(__name__)


class Engines(Protocol):
    """This party's engine, and the way to the others' desks."""

    async def send(self, message: msgspec.Struct) -> None: ...
    def post(self, message: msgspec.Struct) -> None: ...


class Desk:
    """`tell_ready` and `tell_followers` reach the other desks; `engine` is None while no epoch is under way."""

    def __init__(
        self,
        config: PartiesConfig,
        rank: int,
        tell_leader: Callable[[Ready], None],
        tell_followers: Callable[[msgspec.Struct], None],
    ) -> None:
        self._config = config
        self._leads = rank == 0
        self._tell_leader = tell_leader
        self._tell_followers = tell_followers
        self._sessions: dict[bytes, Session] = {}
        self._ready: dict[bytes, dict[int, Ready]] = {}
        self._epoch = 0
        self._heard = monotonic()
        self.engine: Engines | None = None

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def begin(self, epoch: int, engine: Engines) -> None:
        """An epoch is under way: sessions may be opened."""
        self._epoch = epoch
        self.engine = engine

    def end(self, reason: str) -> None:
        """The epoch is over, and every session with it. Nothing was revealed: results go out when a run is whole."""
        self.engine = None
        lost = PartyLost(f"The generation ended: {reason}.", hint="Try again; the parties start anew by themselves.")
        for session in list(self._sessions.values()):
            self._refuse(session, lost)
        self._sessions.clear()
        self._ready.clear()

    async def receive(self, line: Line, message: Open | Put | Piece | Run | Close) -> None:
        """What a client asks for; a wrong word ends its session, not the others'."""
        if isinstance(message, Open):
            await self._open(line, message)
            return
        session = self._sessions.get(message.session)
        if session is None or session.owner is not line:
            if not isinstance(message, Close | Piece):  # both may cross our own Refused
                line.post(_refusal(InvalidRequest("This connection has no such session."), message.session))
            return
        session.touched = monotonic()
        try:
            match message:
                case Put():
                    session.put(message, self._config)
                    await self._to_engine(message)
                case Piece():
                    session.piece(message)
                    await self._to_engine(message)
                case Run():
                    session.ask(message)
                    self._declare(session)
                case Close():
                    self._leave(session)
        except CloisterError as reason:
            self._refuse(session, reason)
            self._leave(session)

    def gone(self, line: Line) -> None:
        """A client's connection ended."""
        for session in [each for each in self._sessions.values() if each.owner is line]:
            self._leave(session)

    def heard(self, message: msgspec.Struct) -> None:
        """What the engine says, for the session's own client."""
        self._heard = monotonic()
        session = self._sessions.get(getattr(message, "session", b""))
        if session is None:
            return
        match message:
            case Opened():
                session.opening = False
                self._pass_on(session, Opened(message.session, self._epoch))
            case Progress() | Result() | Piece():
                self._pass_on(session, message)
            case Done():
                session.done()
                self._pass_on(session, message)
                if session.owner is None:
                    self._drop(session)
            case Refused():
                self._pass_on(session, message)
                self._drop(session)

    def ready(self, rank: int, message: Ready) -> None:
        """At the leader: a party has been asked for a run."""
        waiting = self._ready.setdefault(message.session, {})
        waiting[rank] = message
        if len(waiting) < len(self._config.party):
            return
        del self._ready[message.session]
        agreed = len({(each.number, each.digest) for each in waiting.values()}) == 1
        verdict: Turn | Withdraw = Turn(message.session, message.number) if agreed else Withdraw(message.session, True)
        self._tell_followers(verdict)
        self.turn(verdict) if isinstance(verdict, Turn) else self.withdraw(verdict)

    def turn(self, message: Turn) -> None:
        """This run is next, at all parties."""
        session = self._sessions.get(message.session)
        if session is None or session.asked is None or session.asked.number != message.number:
            raise ProtocolError("A turn for a run that nobody asked for.")
        session.running = True
        self._heard = monotonic()
        if self.engine is not None:
            self.engine.post(session.asked)

    def withdraw(self, message: Withdraw) -> None:
        """This run will not come: its client is gone, or did not ask all parties for the same."""
        session = self._sessions.get(message.session)
        if session is None:
            return
        if message.differ:
            self._refuse(session, InvalidRequest("The parties were not asked for the same run."))
        self._drop(session)

    def watch(self) -> str | None:
        """Called now and then: clients that are idle are left; a reason to end the epoch if the engine is silent."""
        now = monotonic()
        limits = self._config.limits
        for session in list(self._sessions.values()):
            if not session.busy and now - session.touched > limits.idle_s:
                self._refuse(session, RequestTimeout("The session was idle for too long."))
                self._leave(session)
        if any(session.running or session.opening for session in self._sessions.values()):
            return "a party did not answer in time" if now - self._heard > limits.run_silence_s else None
        return None

    async def _open(self, line: Line, message: Open) -> None:
        try:
            if self.engine is None:
                raise ServiceUnavailable("The parties are not ready.", hint="`cloister mpc status` says why.")
            if message.session in self._sessions:
                raise InvalidRequest("This session is open already.")
            limits = self._config.limits
            if len(self._sessions) >= limits.sessions:
                raise QueueFull(f"This party serves {limits.sessions} generations at once.", retry_after=5)
            if message.terms.prompt_tokens > limits.prompt_tokens or message.terms.new_tokens > limits.new_tokens:
                raise InvalidRequest(
                    f"Prompt and answer may have {limits.prompt_tokens} and {limits.new_tokens} tokens here."
                )
        except CloisterError as reason:
            line.post(_refusal(reason, message.session))
            return
        self._sessions[message.session] = Session(message.session, line, message.terms)
        self._heard = monotonic()
        await self._to_engine(message)

    async def _to_engine(self, message: msgspec.Struct) -> None:
        if self.engine is not None:
            await self.engine.send(message)

    def _declare(self, session: Session) -> None:
        assert session.asked is not None
        declared = Ready(session.name, session.asked.number, session.digest(self._epoch))
        if self._leads:
            self.ready(0, declared)
        else:
            self._tell_leader(declared)

    def _leave(self, session: Session) -> None:
        """Its client is gone or done. A run that was declared may still have its turn, and is then waited for."""
        session.owner = None
        if session.asked is None:
            self._drop(session)
        elif self._leads and not session.running:
            self._ready.pop(session.name, None)
            self._tell_followers(Withdraw(session.name, False))
            self._drop(session)

    def _drop(self, session: Session) -> None:
        self._sessions.pop(session.name, None)
        self._ready.pop(session.name, None)
        if self.engine is not None:
            self.engine.post(Close(session.name))

    def _refuse(self, session: Session, reason: CloisterError) -> None:
        self._pass_on(session, _refusal(reason, session.name))

    def _pass_on(self, session: Session, message: msgspec.Struct) -> None:
        if session.owner is not None:
            session.owner.post(message)


def _refusal(reason: CloisterError, session: bytes | None) -> Refused:
    return Refused(reason.code, reason.message, reason.hint or "", session)
