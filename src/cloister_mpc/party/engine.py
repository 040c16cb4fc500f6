"""Holds a party's shares for an epoch. The party checks if a dealer may ask; the engine, whether it makes sense."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from cloister.errors import CloisterError, InvalidRequest, ProtocolError
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child
from cloister_mpc import messages
from cloister_mpc.config import PartiesConfig, decode_settings, share_bytes

if TYPE_CHECKING:
    from cloister_mpc.model.generation import Generation
    from cloister_mpc.model.program_store import ProgramStore
    from cloister_mpc.model.programs import Programs
    from cloister_mpc.model.shape import ModelShape

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_RETRY_MS = 250


class Engine:
    def __init__(self, start: messages.StartEngine, party: BlockingEndpoint[msgspec.Struct]) -> None:
        from cloister_mpc import shares

        self._config = decode_settings(start.settings, PartiesConfig)
        self._rank = start.rank
        self._folder = Path(start.folder)
        self._party = party
        self._dealer = shares.Dealer()
        self._shape: ModelShape | None = None
        self._store: ProgramStore | None = None
        self._sessions: dict[bytes, _EngineSession] = {}

    def connect(self) -> None:
        from spu import Runtime, libspu

        from cloister_mpc import shares

        limits = self._config.limits
        described = libspu.link.Desc()
        described.id = "cloister"
        described.recv_timeout_ms = int(limits.run_silence_s * 1000)
        described.http_timeout_ms = int(limits.run_silence_s * 1000)
        described.connect_retry_interval_ms = _RETRY_MS
        described.connect_retry_times = max(1, int(limits.start_s * 1000 / _RETRY_MS))
        for rank in range(len(self._config.party)):
            name = "engine.sock" if rank == self._rank else f"to-{rank}.sock"
            described.add_party(f"party-{rank}", f"unix:{self._folder / name}")
        self._link = libspu.link.create_brpc(described, self._rank)
        self._runtime = Runtime(self._link, shares.runtime_config())

    def load(self, order: messages.Load) -> None:
        from cloister_mpc import shares
        from cloister_mpc.model.program_store import ProgramStore
        from cloister_mpc.model.shape import ModelShape
        from cloister_mpc.party.weight_store import file_of

        self._shape = decode_settings(order.shape, ModelShape)
        self._store = ProgramStore(Path(order.programs)) if order.programs else None
        for weight in order.weights:
            content = file_of(Path(order.folder), weight).read_bytes()
            self._runtime.set_var(weight.head.name, shares.share_of(weight.head, shares.ARITHMETIC, content))

    def handle(self, order: messages.Open | messages.Put | messages.Piece | messages.Run) -> None:
        match order:
            case messages.Open():
                self.open(order)
                self._party.send(messages.Opened(order.session, 0))
            case messages.Put():
                session = self._session(order.session)
                session.coming, session.bytes = order.head, bytearray()
            case messages.Piece():
                self.piece(order)
            case messages.Run():
                self.run(order)

    def open(self, order: messages.Open) -> None:
        from cloister_mpc.model.generation import Generation
        from cloister_mpc.model.programs import programs_for

        if self._shape is None:
            raise InvalidRequest("No model's weights are here.")
        programs = programs_for(self._shape, order.spec, self._store)
        name = f"s/{order.session.hex()}"

        def report(done: int, total: int) -> None:
            self._party.send(messages.Progress(order.session, session.number, done, total))

        generation = Generation(self._runtime, programs, self._dealer, name=name, progress=report)
        session = self._sessions[order.session] = _EngineSession(name, programs, generation)

    def piece(self, order: messages.Piece) -> None:
        from cloister_mpc import shares

        session = self._session(order.session)
        if session.coming is None:
            raise ProtocolError("Bytes of a share that was not announced.")
        session.bytes += order.data
        if len(session.bytes) == share_bytes(session.coming):
            share = shares.share_of(session.coming, shares.ARITHMETIC, bytes(session.bytes))
            session.given[session.coming.name] = session.coming
            self._runtime.set_var(f"{session.name}/{session.coming.name}", share)
            session.coming, session.bytes = None, bytearray()

    def run(self, order: messages.Run) -> None:
        from cloister_mpc import shares

        session = self._session(order.session)
        session.number = order.number
        session.check(order)
        if order.kind == "prefill":
            session.generation.prefill()
        else:
            session.generation.step(order.at, order.columns)
        session.given.clear()
        share = self._runtime.get_var(session.generation.answer)
        head, kind = shares.described("answer", share)
        content = shares.content_of(share)
        self._party.send(messages.Result(order.session, head, kind, len(content)))
        for data in shares.pieces(content):
            self._party.send(messages.Piece(order.session, data))
        self._party.send(messages.Done(order.session, order.number))

    def close(self, name: bytes) -> None:
        session = self._sessions.pop(name, None)
        if session is None:
            return
        session.generation.close()
        for given in session.given:
            with suppress(RuntimeError):
                self._runtime.del_var(f"{session.name}/{given}")

    def _session(self, name: bytes) -> "_EngineSession":
        if name not in self._sessions:
            raise ProtocolError("A session that is not open.")
        return self._sessions[name]


class _EngineSession:
    def __init__(self, name: str, programs: "Programs", generation: "Generation") -> None:
        self.name = name
        self.programs = programs
        self.generation = generation
        self.number = 0
        self.given: dict[str, messages.ShareHead] = {}
        self.coming: messages.ShareHead | None = None
        self.bytes = bytearray()

    def check(self, order: messages.Run) -> None:
        """Exactly what this pass needs must have been dealt. All parties reach the same verdict: heads are compared."""
        from cloister_mpc.model.programs import dealt

        needed = dealt(self.programs, None if order.kind == "prefill" else order.columns)
        given = {name: (head.dims, head.dtype) for name, head in self.given.items()}
        if given != {name: (tuple(dims), dtype) for name, (dims, dtype) in needed.items()}:
            raise InvalidRequest("What was dealt is not what this pass needs.", hint="model.programs.dealt lists it.")


def serve(party: BlockingEndpoint[msgspec.Struct]) -> None:
    start = party.next()
    if not isinstance(start, messages.StartEngine):
        raise ProtocolError("An engine gets StartEngine first.")
    _leave_network()
    _silence()
    engine = Engine(start, party)
    party.send(messages.Listening())
    while (message := party.next()) is not None:
        match message:
            case messages.Load():
                engine.connect()
                engine.load(message)
                party.send(messages.Loaded())
            case messages.Close():
                engine.close(message.session)
            case messages.Open() | messages.Put() | messages.Piece() | messages.Run():
                try:
                    engine.handle(message)
                except CloisterError as reason:
                    party.send(messages.Refused.of(reason, message.session))


def _leave_network() -> None:
    """Moves to an empty network: its sockets are files. Where the kernel refuses, it stays in its party's."""
    ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def _silence() -> None:
    """SPU logs on its own, and we cannot be sure that what it logs is no secret."""
    null = os.open("/dev/null", os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(null, standard)


def main() -> NoReturn:
    """Hardens first. Of an error it prints the type and the place."""
    control = begin_child("mpc-engine")
    status = 0
    try:
        serve(BlockingEndpoint(control, messages.ToEngine))
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    sys.stderr.flush()
    os._exit(status)  # SPU's threads are not waited for


if __name__ == "__main__":
    main()
