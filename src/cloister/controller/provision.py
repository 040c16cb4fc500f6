"""Where the model comes from: a folder of this machine, or a provider's sealed file as soon as its key was released."""

import asyncio
import json
import logging
import os
from pathlib import Path
from socket import socket
from time import time

import msgspec
from rich.console import Console

from cloister.attest.evidence import Statement
from cloister.certificate import read_certificate
from cloister.channel.envelope import receive_release
from cloister.channel.sealing import ChannelKey
from cloister.config import GatewaySettings, Settings
from cloister.controller.attested_settings import attested_settings
from cloister.controller.channel_keys import ShownKey
from cloister.controller.evidence import EvidenceMaker
from cloister.controller.external_level import measured_packages
from cloister.controller.unsealer import path_of
from cloister.errors import CloisterError, InvalidRequest, ProtocolError, ServiceUnavailable
from cloister.messages.cli_controller import StartController
from cloister.messages.controller_gateway import AskEvidence, Listening
from cloister.messages.controller_key_waiting import FromKeyWaiting, KeyTaken, OfferKey, StartKeyWaiting
from cloister.messages.controller_unsealer import FromUnsealer, Locked, Packed, Unseal, Unsealed
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import failed
from cloister.models.source import ModelFolder
from cloister.port import bind
from cloister.process import interpreter
from cloister.process.child import environment, inherit_everywhere
from cloister.process.handle import ModuleHandle
from cloister.process.hardening import signals_held
from cloister.sealed_weights.file import WeightsBundle, read_provider_key

log = logging.getLogger(__name__)
GRACE_S = 10.0
KEY_HELD_S = 60.0  # promised in evidence: long enough to release the weights' key to it
Provided = tuple[ModelFolder, Settings, "Unsealing | None"]


async def provide(start: StartController, settings: Settings, console: Console) -> Provided:
    """Returns the settings with the port used. Lock the unsealing when the weights are packed."""
    provider = settings.controller.provider_key
    if settings.controller.sealed_weights is None or provider is None:
        return ModelFolder(start.name, Path(start.path), {}), settings, None
    bundle = WeightsBundle.open(settings.controller.sealed_weights, read_provider_key(provider))
    try:
        key, gateway, port = await _delivered(bundle, settings, console)
    finally:
        bundle.close()
    unsealing = Unsealing(port)
    try:
        folder = await unsealing.unseal(start.name, settings.controller.sealed_weights, provider, key)
    except BaseException:
        await unsealing.close()
        raise
    return folder, settings.model_copy(update={"gateway": gateway}), unsealing


Delivered = tuple[bytearray, GatewaySettings, socket]


async def _delivered(bundle: WeightsBundle, settings: Settings, console: Console) -> Delivered:
    """The key, and the port where it came: kept for the gateway, which listens there next."""
    delivery = Delivery(bundle, settings)
    try:
        url = await delivery.open()
        log.info("The node waits for its weights' key at %s.", url)
        console.print(f"{bundle.header.model} is sealed; waiting for its key at {url}", soft_wrap=True)
        console.print(f"  cloister weights release {url} --key FILE --policy FILE", markup=False, soft_wrap=True)
        key = await asyncio.shield(delivery.key)
    finally:
        await delivery.close()
    gateway = settings.gateway.model_copy(update={"port": int(url.rpartition(":")[2])})
    return key, gateway, bind(gateway)


class Delivery:
    """At the gateway's port, with a channel key for this wait alone (Petridish §5: only keys are transmitted)."""

    def __init__(self, bundle: WeightsBundle, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        self._bundle, self._settings = bundle, settings
        self._attested = attested_settings(settings)
        self._channel_key = ChannelKey.generate()
        self._started = int(time())
        self._layers: asyncio.Task[tuple[str, ...]] = asyncio.create_task(_missing_layers())
        self._evidence_maker = EvidenceMaker.of(
            settings.controller,
            measured_packages(settings),
            lambda: ShownKey(self._channel_key.public, KEY_HELD_S),
            self._statement,
        )
        self._waiting: ModuleHandle[Listening] | None = None
        self.key: asyncio.Future[bytearray] = loop.create_future()

    async def open(self) -> str:
        await self._evidence_maker.start()
        waiting = self._waiting = ModuleHandle(
            "key waiting",
            "cloister.gateway.key_waiting",
            FromKeyWaiting,
            Listening,
            handle=self._receive,
            on_end=self._ended,
        )
        settings, degraded = self._settings.gateway, self._settings.controller.allow_degraded_sandbox
        certificate = read_certificate(settings)
        waiting.send(StartKeyWaiting(settings.model_dump_json().encode(), degraded, certificate))
        return (await waiting.ready).url

    async def close(self) -> None:
        await self._evidence_maker.close()
        self._layers.cancel()
        if self._waiting is not None:
            await self._waiting.close(GRACE_S, terminate=True)

    async def _statement(self) -> Statement:
        header = self._bundle.header
        missing = await asyncio.shield(self._layers)
        settings = self._attested
        return Statement(
            header.model, header.digest, settings, settings.hash, missing_layers=missing, started=self._started
        )

    def _receive(self, message: msgspec.Struct) -> None:
        assert self._waiting is not None
        match message:
            case AskEvidence():
                self._evidence_maker.answer(self._waiting.endpoint, message)
            case OfferKey():
                self._waiting.send(self._answer_to(message))

    def _answer_to(self, offer: OfferKey) -> KeyTaken | Failed:
        try:
            key, answer = receive_release(self._channel_key, offer.message)
            if not self._bundle.opens_with(key):
                raise InvalidRequest("This is not the key of the weights that wait here.")
        except CloisterError as reason:
            return failed(offer.request_id, reason)
        if self.key.done():  # released twice at once: both answers are true
            key[:] = bytes(len(key))
        else:
            self.key.set_result(key)
        return KeyTaken(offer.request_id, answer)

    def _ended(self) -> None:
        if not self.key.done():
            self.key.set_exception(
                ServiceUnavailable("Key waiting ended while the server waited for its weights' key.")
            )
            self.key.exception()  # marks it as retrieved: perhaps no task waits for it yet


async def _missing_layers() -> tuple[str, ...]:
    """The provider's policy may demand it before the key is released."""
    command, descriptors = interpreter.python("cloister.process.sandbox"), interpreter.inherited()
    with signals_held():
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=environment(), pass_fds=descriptors
        )
    said, _ = await process.communicate()
    return tuple(json.loads(said)["missing"])


class Unsealing:
    """The weights are a folder in memory while this is open. It has no path: all children inherit its descriptor.
    `port` is kept until the end."""

    def __init__(self, port: socket) -> None:
        self._port = port
        self._handle = ModuleHandle(
            "unsealer",
            "cloister.controller.unsealer",
            FromUnsealer,
            Unsealed,
            handle=self._receive,
            on_end=self._ended,
            lost=_lost(),
        )
        self._locked: asyncio.Future[None] | None = None
        self._descriptor: int | None = None

    async def unseal(self, name: str, path: Path, provider: str, content_key: bytearray) -> ModelFolder:
        """The key is erased here."""
        try:
            self._handle.send(Unseal(str(path), provider, bytes(content_key)))
        finally:
            content_key[:] = bytes(len(content_key))
        await self._handle.ready
        self._descriptor = self._handle.endpoint.take_descriptor()
        inherit_everywhere(self._descriptor)
        return ModelFolder(name, path_of(self._descriptor), {})

    async def lock(self) -> None:
        """The parameters' files go: the packed weights are the only copy. The rest can no longer be changed."""
        self._locked = asyncio.get_running_loop().create_future()
        self._handle.send(Packed())
        if not self._handle.endpoint.open:
            raise _lost()
        await self._locked
        await self._handle.ends()

    async def close(self) -> None:
        self._port.close()
        await self._handle.close()
        if self._descriptor is not None:
            inherit_everywhere(None)
            os.close(self._descriptor)
            self._descriptor = None

    def _receive(self, message: msgspec.Struct) -> None:
        if not isinstance(message, Locked) or self._locked is None or self._locked.done():
            raise ProtocolError("The unsealer sent a message out of turn.")
        self._locked.set_result(None)

    def _ended(self) -> None:
        if self._locked is not None and not self._locked.done():
            self._locked.set_exception(_lost())


def _lost() -> ServiceUnavailable:
    return ServiceUnavailable(
        "The process that unseals the weights ended.",
        hint="Perhaps memory ran out: while they are packed the weights must fit into it twice.",
    )
