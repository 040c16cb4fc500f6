"""The service's loop: take messages, step the engine, send tokens. One thread; it ends when the controller hangs up.

It hears of tokens and links, never of text. `prepare` does all that a sealed process cannot; `Service.run` opens no
file, prints nothing, and makes no system call beyond messages, memory and futexes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import msgspec
import torch

from cloister.compute.base import KVCache
from cloister.config import EngineSettings
from cloister.engine.engine import Engine
from cloister.engine.graph_runner import runner_for
from cloister.engine.rehearsal import rehearse_device
from cloister.engine.runner import reserve_cache
from cloister.errors import ProtocolError
from cloister.messages.frames import encode_frame, encode_frames
from cloister.messages.generation import VERSION, AskStats, Cancel, Ready, Submit
from cloister.messages.lifecycle import Ping, Pong
from cloister.messages.service import (
    MAX_CHARGES,
    AttachLink,
    DetachLink,
    Forget,
    Label,
    LinkPlace,
    Pause,
    Paused,
    Probed,
    Resume,
    ToSealedService,
    WeightsPlace,
)
from cloister.models.decoder import Decoder
from cloister.prefix.disk import DiskTier
from cloister.prefix.host import HostTier
from cloister.prefix.monitor import Alert, Monitor
from cloister.prefix.radix import RadixCache
from cloister.prefix.tier import Tier
from cloister.process.blocking import BlockingEndpoint


def prepare(decoder: Decoder, settings: EngineSettings, disk: int | None = None, weights: int | None = None) -> Service:
    """A service over a loaded decoder: its KV cache is reserved here, before the process is sealed.

    `disk` is a file without a name, for blocks that the cache has no room for; `weights` the device's memory with the
    weights, to be announced.
    """
    torch.set_num_threads(1)  # the kernels have a team of their own; two teams would fight for the cores
    refused = decoder.device.partition_refusal(decoder)
    asker = None if refused else decoder.device.asker(decoder, settings.link_deadline_ms)
    cache = reserve_cache(decoder, settings.kv_cache_mib)
    runner = runner_for(decoder, cache, asker)
    if not decoder.device.survives_fork:
        rehearse_device(runner, settings)
    tier = tiers(cache, settings, disk, _model_of(decoder))
    alerts: list[Alert] = []
    prefix = RadixCache(tier, Monitor(on_alert=alerts.append), None if tier is None else cache)
    engine = Engine(runner, settings, prefix)
    ready = Ready(
        version=VERSION,
        vocabulary=runner.vocabulary,
        max_context=engine.max_context,
        kv_blocks=runner.num_blocks,
        block_tokens=runner.block_tokens,
        kernels=decoder.kernels.name,
    )
    return Service(engine, ready, alerts, lambda: decoder.device.lost, weights)


def tiers(cache: KVCache, settings: EngineSettings, disk: int | None, model: bytes) -> Tier | None:
    """What is below the pool: the host's memory where the pool is not in it, then the disk."""
    size = cache.block_bytes
    below = None if disk is None else DiskTier(disk, settings.cache_disk_bytes, size, model)
    if cache.on_host or settings.cache_host_bytes < size:
        return below
    return HostTier(settings.cache_host_bytes, size, below)


def _model_of(decoder: Decoder) -> bytes:
    """What blocks on a disk are bound to. The keys that open them live as long as this process, which has one model."""
    shape = decoder.cache_shape
    return f"{decoder.kernels.name} {decoder.kernels.dtype} {decoder.vocabulary} {shape}".encode()


class Service:
    """Steps the engine while it has work and the cores are its own (messages.service.Pause). `alerts` is where the
    engine's prefix cache says what looks probed. Ends if a step failed and `lost` says that no other will succeed."""

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
        """Whether the controller is there. A frame of its own: no message is held while the next is awaited."""
        messages = inbox.receive(wait=self._paused or not self._engine.has_work)
        for message in messages or ():
            self._hear(message, inbox)
        return messages is not None

    def _send(self, control: socket.socket) -> None:
        self._replies += [Probed(alert.owner, alert.suspect) for alert in self._alerts]
        self._alerts.clear()
        if self._replies:
            control.sendall(encode_frames(tuple(self._replies)))
            self._replies.clear()

    def _hear(self, message: ToSealedService, inbox: BlockingEndpoint[ToSealedService]) -> None:
        match message:
            case Submit():
                self._replies.append(self._engine.submit(message))
            case Cancel(request_id=request_id):
                self._engine.cancel(request_id)
            case AskStats():
                self._replies.append(self._engine.stats())
            case Ping():
                self._replies.append(Pong())
            case Label(request_id=request_id, public_tokens=public, final=final):
                self._engine.label(request_id, public, final=final)
            case Forget(tenant=tenant):
                self._engine.forget(tenant)
            case AttachLink(link=link, place=int(place)):
                self._engine.attach_link_slot(link, place)
            case AttachLink(link=link):
                self._attach(link, *inbox.take_descriptors(2))
            case DetachLink(link=link):
                self._replies.extend(self._engine.drop_link(link))
            case Pause():
                if self._pausing or self._paused:
                    raise ProtocolError("The service was told to pause twice.")
                self._pausing = True
            case Resume(charged=charged):
                if not self._paused:
                    raise ProtocolError("The service was told to go on, and had not paused.")
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
