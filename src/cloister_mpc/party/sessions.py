"""A session, and results, belong to one connection. A run begins when every party was asked for the same one."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

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
from cloister_mpc import messages
from cloister_mpc.config import PartiesConfig, share_bytes
from cloister_mpc.connection import Connection

_MIB = 1 << 20
_MOST_SHARES = 4096


class ClientSession:
    def __init__(self, name: bytes, owner: Connection, spec: messages.GenerationSpec) -> None:
        self.name = name
        self.owner: Connection | None = owner
        self.touched = monotonic()
        self.opening = True
        self.running = False
        self.asked: messages.Run | None = None
        self._spec = spec
        self._runs = 0
        self._left = 0
        self._bytes = 0
        self._announced: list[messages.Put] = []

    @property
    def busy(self) -> bool:
        return self.opening or self.asked is not None

    def put(self, message: messages.Put, config: PartiesConfig) -> None:
        if self._left or self.asked is not None:
            raise InvalidRequest("A share must not be announced now.")
        self._left = share_bytes(message.head)
        self._bytes += self._left
        if self._bytes > config.limits.session_mib * _MIB or len(self._announced) > _MOST_SHARES:
            raise InvalidRequest(f"A session may be dealt {config.limits.session_mib} MiB of shares.")
        self._announced.append(message)

    def piece(self, message: messages.Piece) -> None:
        self._left -= len(message.data)
        if self._left < 0:
            raise InvalidRequest("A share has more bytes than were announced.")

    def ask(self, message: messages.Run) -> None:
        if self.opening or self._left or self.asked is not None or message.number != self._runs:
            raise InvalidRequest("A run must not be asked for now.")
        self.asked = message

    def done(self) -> None:
        self.asked, self.running = None, False
        self._runs += 1
        self._announced.clear()
        self.touched = monotonic()

    def digest(self, epoch: int) -> bytes:
        """Of all that must be the same at all parties for their engines to run together."""
        return hashlib.sha256(
            msgspec.json.encode((epoch, self._spec, [each.head for each in self._announced], self.asked))
        ).digest()


class Sessions:
    """`tell` reaches the leader or, at the leader, all followers; `engine` is None while no epoch is under way."""

    def __init__(self, config: PartiesConfig, rank: int, tell: Callable[[msgspec.Struct], None]) -> None:
        self._config = config
        self._leads = rank == 0
        self._tell = tell
        self._sessions: dict[bytes, ClientSession] = {}
        self._ready: dict[bytes, dict[int, messages.Ready]] = {}
        self._epoch = 0
        self._engine_spoke = monotonic()
        self.engine: Connection | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, epoch: int, engine: Connection) -> None:
        self._epoch = epoch
        self.engine = engine

    def end(self, reason: str) -> None:
        """The epoch is over, and every session with it. Nothing was revealed: results go out when a run is whole."""
        self.engine = None
        lost = PartyLost(f"The generation ended: {reason}.", hint="Try again; the parties start again by themselves.")
        for session in list(self._sessions.values()):
            self._refuse(session, lost)
        self._sessions.clear()
        self._ready.clear()

    async def receive(self, connection: Connection, message: messages.FromClient) -> None:
        """What a client asks for; a wrong message ends its session, not the others'."""
        if isinstance(message, messages.Open):
            await self._open(connection, message)
            return
        session = self._sessions.get(message.session)
        if session is None or session.owner is not connection:
            if not isinstance(message, messages.Close | messages.Piece):  # both may cross our own Refused
                reason = InvalidRequest("This connection has no such session.")
                connection.post(messages.Refused.of(reason, message.session))
            return
        session.touched = monotonic()
        try:
            match message:
                case messages.Put():
                    session.put(message, self._config)
                    await self._to_engine(message)
                case messages.Piece():
                    session.piece(message)
                    await self._to_engine(message)
                case messages.Run():
                    session.ask(message)
                    declared = messages.Ready(session.name, message.number, session.digest(self._epoch))
                    self.ready(0, declared) if self._leads else self._tell(declared)
                case messages.Close():
                    self._leave(session)
        except CloisterError as reason:
            self._refuse(session, reason)
            self._leave(session)

    def gone(self, connection: Connection) -> None:
        for session in [each for each in self._sessions.values() if each.owner is connection]:
            self._leave(session)

    def from_engine(self, message: msgspec.Struct) -> None:
        self._engine_spoke = monotonic()
        session = self._sessions.get(getattr(message, "session", b""))
        if session is None:
            return
        match message:
            case messages.Opened():
                session.opening = False
                self._pass_on(session, messages.Opened(message.session, self._epoch))
            case messages.Progress() | messages.Result() | messages.Piece():
                self._pass_on(session, message)
            case messages.Done():
                session.done()
                self._pass_on(session, message)
                if session.owner is None:
                    self._drop(session)
            case messages.Refused():
                self._pass_on(session, message)
                self._drop(session)

    def ready(self, rank: int, message: messages.Ready) -> None:
        """At the leader: a party has been asked for a run."""
        waiting = self._ready.setdefault(message.session, {})
        waiting[rank] = message
        if len(waiting) < len(self._config.party):
            return
        del self._ready[message.session]
        agreed = len({(each.number, each.digest) for each in waiting.values()}) == 1
        verdict: messages.Turn | messages.Withdraw = (
            messages.Turn(message.session, message.number) if agreed else messages.Withdraw(message.session, True)
        )
        self._tell(verdict)
        self.decided(verdict)

    def decided(self, message: messages.Turn | messages.Withdraw) -> None:
        """This run is next at all parties; or it will not come: its client is gone or did not ask all for the same."""
        session = self._sessions.get(message.session)
        if isinstance(message, messages.Turn):
            if session is None or session.asked is None or session.asked.number != message.number:
                raise ProtocolError("A turn for a run that was not asked for.")
            session.running = True
            self._engine_spoke = monotonic()
            if self.engine is not None:
                self.engine.post(session.asked)
        elif session is not None:
            if message.differ:
                self._refuse(session, InvalidRequest("The parties were not asked for the same run."))
            self._drop(session)

    def watch(self) -> str | None:
        """Called now and then: drops idle clients; returns a reason to end the epoch if the engine is silent."""
        now = monotonic()
        limits = self._config.limits
        for session in list(self._sessions.values()):
            if not session.busy and now - session.touched > limits.idle_s:
                self._refuse(session, RequestTimeout("The session was idle for too long."))
                self._leave(session)
        if any(session.running or session.opening for session in self._sessions.values()):
            return "a party did not answer in time" if now - self._engine_spoke > limits.run_silence_s else None
        return None

    async def _open(self, connection: Connection, message: messages.Open) -> None:
        try:
            if self.engine is None:
                raise ServiceUnavailable("The parties are not ready.", hint="`cloister mpc status` says why.")
            if message.session in self._sessions:
                raise InvalidRequest("This session is open already.")
            limits = self._config.limits
            if len(self._sessions) >= limits.sessions:
                raise QueueFull(f"This party serves {limits.sessions} generations at once.", retry_after=5)
            if message.spec.prompt_tokens > limits.prompt_tokens or message.spec.new_tokens > limits.new_tokens:
                raise InvalidRequest(
                    f"Prompt and answer may have {limits.prompt_tokens} and {limits.new_tokens} tokens here."
                )
        except CloisterError as reason:
            connection.post(messages.Refused.of(reason, message.session))
            return
        self._sessions[message.session] = ClientSession(message.session, connection, message.spec)
        self._engine_spoke = monotonic()
        await self._to_engine(message)

    async def _to_engine(self, message: msgspec.Struct) -> None:
        if self.engine is not None:
            with suppress(ConnectionError):
                await self.engine.send(message)

    def _leave(self, session: ClientSession) -> None:
        """Its client is gone or done. A run that was declared may still get its turn, and is then waited for."""
        session.owner = None
        if session.asked is None:
            self._drop(session)
        elif self._leads and not session.running:
            self._ready.pop(session.name, None)
            self._tell(messages.Withdraw(session.name, False))
            self._drop(session)

    def _drop(self, session: ClientSession) -> None:
        self._sessions.pop(session.name, None)
        self._ready.pop(session.name, None)
        if self.engine is not None:
            self.engine.post(messages.Close(session.name))

    def _refuse(self, session: ClientSession, reason: CloisterError) -> None:
        self._pass_on(session, messages.Refused.of(reason, session.name))

    def _pass_on(self, session: ClientSession, message: msgspec.Struct) -> None:
        if session.owner is not None:
            session.owner.post(message)
