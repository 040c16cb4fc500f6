"""The service's loop, in one thread. `run` opens no file, prints nothing; system calls: messages, memory, futexes."""

import os
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from cloister.engine.base import Engine, EngineRequest
from cloister.errors import ProtocolError
from cloister.levels import PolicyName
from cloister.messages import controller_service as wire
from cloister.messages.frames import encode_frame, encode_frames
from cloister.messages.generation import AskStats, Cancel, Ready
from cloister.messages.lifecycle import Ping, Pong
from cloister.process.blocking import BlockingEndpoint


def request_of(message: wire.Generate) -> EngineRequest:
    head = message.request_id, message.tenant
    if isinstance(message, wire.GeneratePrompt):
        narrowed: dict[str, Any] = {"salt": message.salt, "policy": message.policy}
        return EngineRequest(*head, message.prompt, message.params, message.public, **narrowed)
    partitions = message.partitions if isinstance(message, wire.GenerateVariants) else (message.partition,)
    public = len(message.public)
    policy: PolicyName = "partition" if public else "none"  # without public tokens there is nothing to find or keep
    made = message.made if isinstance(message, wire.GenerateVariants) else (message.made,)
    return EngineRequest(
        *head, message.public, message.params, public, partitions, message.salt, policy, made=made if any(made) else ()
    )


class Service:
    """Steps the engine unless paused. Ends if a step failed and `lost` says that no other will succeed."""

    def __init__(
        self,
        engine: Engine,
        ready: Ready,
        lost: Callable[[], bool] = lambda: False,
        weights: int | None = None,
    ) -> None:
        self._engine, self._weights = engine, weights
        self._lost = lost
        self._ready = ready
        self._replies: list[msgspec.Struct] = []
        self._pausing = self._paused = False
        self._owes_step = False

    def announce(self, control: socket.socket) -> None:
        """Before the seal, after which no descriptor can be sent: the device's memory for links and weights."""
        if self._weights is not None:
            socket.send_fds(control, [encode_frame((wire.WeightsMemory(),))], [self._weights])
            os.close(self._weights)
        for slot, memory in enumerate(self._engine.export_links()):
            socket.send_fds(control, [encode_frame((wire.LinkSlot(slot),))], [memory])
            os.close(memory)

    def run(self, control: socket.socket) -> None:
        """ProtocolError, after which nothing is served, if the controller sends nonsense."""
        inbox: BlockingEndpoint[wire.ToSealedService] = BlockingEndpoint(control, wire.ToSealedService)
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

    def _take(self, inbox: BlockingEndpoint[wire.ToSealedService]) -> bool:
        """Whether the controller is there. A separate stack frame: no message is held while the next is awaited."""
        messages = inbox.receive(wait=self._paused or not self._engine.has_work)
        for message in messages or ():
            self._handle(message, inbox)
        return messages is not None

    def _send(self, control: socket.socket) -> None:
        if self._replies:
            control.sendall(encode_frames(tuple(self._replies)))
            self._replies.clear()

    def _handle(self, message: wire.ToSealedService, inbox: BlockingEndpoint[wire.ToSealedService]) -> None:
        match message:
            case wire.GeneratePrompt() | wire.GeneratePartitioned() | wire.GenerateVariants():
                self._replies.append(self._engine.submit(request_of(message)))
            case Cancel(request_id=request_id):
                self._engine.cancel(request_id)
            case AskStats():
                self._replies.append(self._engine.stats())
            case Ping():
                self._replies.append(Pong())
            case wire.PublicPrefix():
                self._engine.label(message.request_id, message.public_tokens, message.registered)
            case wire.ForgetTenant(tenant=tenant):
                self._engine.forget(tenant)
            case wire.AttachLink(link=link, slot=int(slot)):
                self._engine.attach_exported_link(link, slot)
            case wire.AttachLink(link=link):
                self._attach(link, *inbox.take_descriptors(2))
            case wire.DetachLink(link=link):
                self._replies.extend(self._engine.detach_link(link))
            case wire.Pause():
                if self._pausing or self._paused:
                    raise ProtocolError("The service got Pause twice.")
                self._pausing = True
            case wire.Resume(charged=charged):
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
        """After a Resume there is a step first, if a request needs one."""
        if self._paused:
            return
        if self._engine.has_work and (not self._pausing or (self._owes_step and not self._engine.only_spare)):
            self._replies.extend(self._engine.step())
            self._owes_step = False
        if self._pausing:
            self._pausing, self._paused = False, True
            self._replies.append(wire.Paused(self._engine.meter.drain(wire.MAX_CHARGES)))
