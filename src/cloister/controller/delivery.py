"""Waiting for the key of sealed weights: this node shows what it is, and its provider releases the key to it or not.

Key waiting (`gateway.key_waiting`) listens in the gateway's place. The channel key is made for this wait alone:
nothing that a user ever seals is sealed to it, and it is gone with the wait (Petridish §5: only keys are transmitted).
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import time

import msgspec

from cloister.attest.attester import find_attester
from cloister.attest.evidence import Statement
from cloister.channel.envelope import receive_release
from cloister.channel.sealing import ChannelKey
from cloister.config import Settings
from cloister.controller.evidence import EvidenceMaker
from cloister.controller.release import find_release
from cloister.errors import CloisterError, InvalidRequest, ServiceUnavailable
from cloister.messages.frontend import AskEvidence, Listening
from cloister.messages.generation import VERSION, Failed
from cloister.messages.lifecycle import failed
from cloister.messages.sealed_weights import FromKeyWaiting, KeyTaken, OfferKey, StartKeyWaiting
from cloister.process.child import environment
from cloister.process.handle import ModuleHandle
from cloister.sealed_weights.file import WeightsBundle

GRACE_S = 10.0


class Delivery:
    """`open` the key-waiting process, then wait for the `key`; `close` it before the gateway opens."""

    def __init__(self, bundle: WeightsBundle, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        self._bundle = bundle
        self._settings = settings
        self._channel_key = ChannelKey.generate()
        self._started = int(time())
        self._layers: asyncio.Task[tuple[str, ...]] = asyncio.create_task(_missing_layers())
        controls = settings.controller
        self._evidence_maker = EvidenceMaker(
            find_attester(controls.attester), find_release(controls.release), self._channel_key, self._statement
        )
        self.key: asyncio.Future[bytearray] = loop.create_future()

    async def open(self) -> str:
        """Start the key-waiting process; where it listens."""
        self._waiting = ModuleHandle(
            "key waiting",
            "cloister.gateway.key_waiting",
            FromKeyWaiting,
            Listening,
            hear=self._receive,
            on_end=self._ended,
        )
        self._waiting.send(StartKeyWaiting(VERSION, self._settings.gateway.model_dump_json().encode()))
        return (await self._waiting.ready).url

    async def close(self) -> None:
        """End the key-waiting process; the answer to who released the key gets time to go out."""
        self._evidence_maker.close()
        self._layers.cancel()
        await self._waiting.close(GRACE_S, terminate=True)

    async def _statement(self) -> Statement:
        header = self._bundle.header
        missing = await asyncio.shield(self._layers)
        return Statement(header.model, header.digest, missing, self._started)

    def _receive(self, message: msgspec.Struct) -> None:
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
        if self.key.done():  # released twice at once: both providers' answers are true
            key[:] = bytes(len(key))
        else:
            self.key.set_result(key)
        return KeyTaken(offer.request_id, answer)

    def _ended(self) -> None:
        if not self.key.done():
            self.key.set_exception(
                ServiceUnavailable("Key waiting ended while the server waited for its weights' key.")
            )
            self.key.exception()  # nobody may be waiting yet


async def _missing_layers() -> tuple[str, ...]:
    """What this machine's sandbox lacks: the provider wants to know before it trusts it with weights."""
    command = (sys.executable, "-m", "cloister.process.sandbox")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment())
    said, _ = await process.communicate()
    return tuple(json.loads(said)["missing"])
