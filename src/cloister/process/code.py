"""A node's code, loaded once by templates, which fork it. A template that ends takes its children and the node."""

import asyncio
import itertools
import socket
from collections.abc import Sequence
from contextlib import suppress

from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.messages.controller_template import Fork, Forked, FromTemplate
from cloister.process import child
from cloister.process.endpoint import Endpoint
from cloister.process.watchdog import SILENT

TEMPLATE = "cloister.process.template"
COMPUTING = ("cloister.forkserver", "cloister.models.pack_weights")  # need torch: one template loads it once for both


class Template:
    """It loads its entries while others work. `lost` is done if it ends before `close`."""

    def __init__(self, entries: Sequence[str]) -> None:
        self.entries = tuple(entries)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count(1)
        self._starting: dict[int, child.StartedChild] = {}
        self._process, ours = child.start_module(TEMPLATE, *entries)
        self._endpoint = Endpoint(ours, FromTemplate, self._forked, self._ended)
        self._endpoint.watch("template", lambda: self._process.stopped)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def fork(self, entry: str, peer: socket.socket, inherited: Sequence[int]) -> child.StartedChild:
        """`peer` is closed here; the child has `inherited` under their own numbers."""
        number, born = next(self._numbers), child.StartedChild()
        self._starting[number] = born
        with peer:
            self._endpoint.send(Fork(number, entry, tuple(inherited)), (peer.fileno(), *inherited))
        if not self._endpoint.open:
            self._drop_unborn()
        return born

    async def close(self) -> None:
        self._endpoint.close()
        self._process.kill()
        await self._process.ends()
        self._drop_unborn()

    def _forked(self, message: Forked) -> None:
        if (born := self._starting.pop(message.child, None)) is None:
            raise ProtocolError("A template forked a child without an order.")
        born.born(self._endpoint.take_descriptor())
        self._endpoint.demand_answers(SILENT["template"])  # it has loaded all it forks

    def _ended(self) -> None:
        self._process.kill()
        self._drop_unborn()
        if not self.lost.done():
            self.lost.set_result(None)

    def _drop_unborn(self) -> None:
        for each in self._starting.values():
            each.never_born()
        self._starting.clear()


class Code:
    def __init__(self, *groups: Sequence[str]) -> None:
        self._templates = [Template(entries) for entries in groups]
        child.fork_from({entry: template for template in self._templates for entry in template.entries})

    async def lost(self) -> None:
        await asyncio.wait([template.lost for template in self._templates], return_when=asyncio.FIRST_COMPLETED)
        raise ServiceUnavailable(
            "A process that holds the node's code ended, and no other may be started without it.",
            hint="Start the server again.",
        )

    async def close(self) -> None:
        child.fork_from({})
        for template in self._templates:
            with suppress(OSError):
                await template.close()
