"""The service's loop: take messages, step the engine, send tokens. One thread; it ends when the controller hangs up.

Its messages have tokens and links, and no text. Which engine serves is `prepare`'s choice. `Service.run` opens no file,
prints nothing, and makes no system call beyond messages, memory and futexes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from cloister.engine.base import Engine
from cloister.engine.request import EngineRequest
from cloister.errors import ProtocolError
from cloister.messages.controller_service import (
    MAX_CHARGES,
    AttachLink,
    DetachLink,
    ForgetTenant,
    Generate,
    GeneratePartitioned,
    GeneratePrompt,
    GenerateVariants,
    LinkPlace,
    Pause,
    Paused,
    Probed,
    PublicPrefix,
    Resume,
    ToSealedService,
    WeightsPlace,
)
from cloister.messages.frames import encode_frame, encode_frames
from cloister.messages.generation import AskStats, Cancel, Ready
from cloister.messages.lifecycle import Ping, Pong
from cloister.prefix.monitor import Alert
from cloister.process.blocking import BlockingEndpoint


def request_of(message: Generate) -> EngineRequest:
    """The message as the engine's request."""
    head = message.request_id, message.tenant
    if isinstance(message, GeneratePrompt):
        narrowed: dict[str, Any] = {"salt": message.salt, "policy": message.policy, "background": message.background}
        return EngineRequest(*head, message.prompt, message.params, message.public, **narrowed)
    partitions = message.partitions if isinstance(message, GenerateVariants) else (message.partition,)
    public = len(message.public)
    return EngineRequest(*head, message.public, message.params, public, partitions, message.salt, "partition")


class Service:
    """Steps the engine while it has work and may use the cores (`Pause`). `alerts` gets what the prefix cache finds
    probed. Ends if a step failed and `lost` says that no other will succeed."""

    def __init__(
        self,
        engine: Engine,
        ready: Ready,
        alerts: list[Alert] | None = None,
        lost: Callable[[], bool] = lambda: False,
        weights: int | None = None,
    ) -> None:
        self._engine, self._weights = engine, weights
        self._lost = lost
        self._ready = ready
        self._alerts = [] if alerts is None else alerts
        self._replies: list[msgspec.Struct] = []
        self._pausing = self._paused = False
        self._owes_step = False

    def announce(self, control: socket.socket) -> None:
        """Before the seal, after which no descriptor can be sent: the memory for links, and that with the weights,
        where the device has it."""
        if self._weights is not None:
            socket.send_fds(control, [encode_frame((WeightsPlace(),))], [self._weights])
            os.close(self._weights)
        for place, memory in enumerate(self._engine.export_links()):
            socket.send_fds(control, [encode_frame((LinkPlace(place),))], [memory])
            os.close(memory)

    def run(self, control: socket.socket) -> None:
        """Serve until the controller hangs up. ProtocolError, after which nothing is served, if it sends nonsense."""
        inbox: BlockingEndpoint[ToSealedService] = BlockingEndpoint(control, ToSealedService)
        self._replies = [self._ready]
        try:
            while True:
                self._send(control)
                if not self._take(inbox):
                    return
                self._compute()
                if self._engine.take_failure() and self._lost():
                    self._send(control)  # every request has its error; the next process has the device again
                    return
        except ConnectionError:
            return  # hung up while we were speaking
        finally:
            inbox.close()

    def _take(self, inbox: BlockingEndpoint[ToSealedService]) -> bool:
        """Whether the controller is there. A separate stack frame: no message is held while the next is awaited."""
        messages = inbox.receive(wait=self._paused or not self._engine.has_work)
        for message in messages or ():
            self._handle(message, inbox)
        return messages is not None

    def _send(self, control: socket.socket) -> None:
        self._replies += [Probed(alert.owner, alert.suspect) for alert in self._alerts]
        self._alerts.clear()
        if self._replies:
            control.sendall(encode_frames(tuple(self._replies)))
            self._replies.clear()

    def _handle(self, message: ToSealedService, inbox: BlockingEndpoint[ToSealedService]) -> None:
        match message:
            case GeneratePrompt() | GeneratePartitioned() | GenerateVariants():
                self._replies.append(self._engine.submit(request_of(message)))
            case Cancel(request_id=request_id):
                self._engine.cancel(request_id)
            case AskStats():
                self._replies.append(self._engine.stats())
            case Ping():
                self._replies.append(Pong())
            case PublicPrefix(request_id=request_id, public_tokens=public, final=final):
                self._engine.label(request_id, public, final=final)
            case ForgetTenant(tenant=tenant):
                self._engine.forget(tenant)
            case AttachLink(link=link, place=int(place)):
                self._engine.attach_exported_link(link, place)
            case AttachLink(link=link):
                self._attach(link, *inbox.take_descriptors(2))
            case DetachLink(link=link):
                self._replies.extend(self._engine.detach_link(link))
            case Pause():
                if self._pausing or self._paused:
                    raise ProtocolError("The service got Pause twice.")
                self._pausing = True
            case Resume(charged=charged):
                if not self._paused:
                    raise ProtocolError("The service got Resume, and had not paused.")
                self._engine.meter.merge(charged)
                self._paused, self._owes_step = False, True

    def _attach(self, link: int, question: int, answer: int) -> None:
        try:
            self._engine.attach_link(link, question, answer)
        finally:
            os.close(question)
            os.close(answer)

    def _compute(self) -> None:
        """A step, unless a pause is asked for; after a Resume there is a step first, if there is work for one."""
        if self._paused:
            return
        if self._engine.has_work and (self._owes_step or not self._pausing):
            self._replies.extend(self._engine.step())
            self._owes_step = False
        if self._pausing:
            self._pausing, self._paused = False, True
            self._replies.append(Paused(self._engine.meter.drain(MAX_CHARGES)))
