"""A handle on a process at the other end of a socket, which reports once that it is ready, or why it is not."""

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from cloister.errors import CloisterError, ProtocolError, ServiceUnavailable
from cloister.messages.lifecycle import StartFailed, why_not_started
from cloister.process.child import Child, start_module
from cloister.process.endpoint import Endpoint
from cloister.process.watchdog import SILENT, Patience

Ready = TypeVar("Ready", bound=msgspec.Struct)


class Handle(Generic[Ready]):
    """`ready` gives the first message, or raises `lost` or why it has not started. `on_end` is called once if it hangs
    up, breaks the protocol or is silent; the owner kills it then."""

    def __init__(
        self,
        name: str,
        child: Child,
        peer: socket.socket,
        says: object,
        ready: type[Ready],
        *,
        handle: Callable[[msgspec.Struct], None] | None = None,
        on_end: Callable[[], None] | None = None,
        lost: CloisterError | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.name = name
        self._patience = patience or SILENT.get(name)
        self._child, self._is_ready, self._handle, self._on_end = child, ready, handle, on_end
        self._lost = lost or ServiceUnavailable(f"The {name} ended while it started.")
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.endpoint = Endpoint(peer, says, self._receive, self._hung_up)
        self.endpoint.watch(name, lambda: child.stopped)

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def started(self) -> bool:
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    def send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        self.endpoint.send(message, descriptors)

    def kill(self, wait_s: float = 0.0) -> None:
        self.endpoint.close()
        self._child.kill(wait_s)
        self._fail()

    def _receive(self, message: msgspec.Struct) -> None:
        if isinstance(message, (self._is_ready, StartFailed)):
            if self.ready.done():
                raise ProtocolError(f"The {self.name} sent a message out of turn.")
            if isinstance(message, StartFailed):
                self._fail(why_not_started(message))
            else:
                self.ready.set_result(message)
                self.endpoint.demand_answers(self._patience)
        elif self._handle is not None:
            self._handle(message)
        else:
            raise ProtocolError(f"The {self.name} sent a message out of turn.")

    def _hung_up(self) -> None:
        self._fail()
        if self._on_end is not None:
            self._on_end()

    def _fail(self, reason: CloisterError | None = None) -> None:
        if not self.ready.done():
            self.ready.set_exception(reason or self._lost)
            self.ready.exception()  # marks it as retrieved: perhaps no task waits for it


class ModuleHandle(Handle[Ready]):
    def __init__(
        self,
        name: str,
        module: str,
        says: object,
        ready: type[Ready],
        *,
        handle: Callable[[msgspec.Struct], None] | None = None,
        on_end: Callable[[], None] | None = None,
        lost: CloisterError | None = None,
    ) -> None:
        self._module, ours = start_module(module)
        super().__init__(name, self._module, ours, says, ready, handle=handle, on_end=on_end, lost=lost)

    async def ends(self) -> None:
        await self._module.ends()

    async def close(self, grace_s: float = 0.0, *, terminate: bool = False) -> None:
        """By a signal or by closing our side; after `grace_s` it is killed, and at once if it was found late."""
        if terminate:
            self._module.terminate()
        else:
            self.endpoint.say_goodbye()
        if not await self._module.ends(0.0 if self.endpoint.late else grace_s):
            self._module.kill()
            await self._module.ends()
        self.kill()
