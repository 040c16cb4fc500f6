"""A node without a model: real evidence of the software attester, a real log, the real sealed channel, a tiny API.

What arrives in the clear at any other path is kept in `in_the_clear`, and answered as an OpenAI server would: a client
that fell back to plaintext would be noticed here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.attest.attester import Attester, SoftwareAttester
from cloister.attest.evidence import VERSION, AttestedSettings, NodeEvidence, bind, write_evidence
from cloister.channel.envelope import CONTENT_TYPE, Envelope, InnerHead, InnerRequest
from cloister.channel.sealing import ChannelKey, SeenMessages, open_prompt, open_request
from cloister.channel.stream import StreamSealer
from cloister.errors import ChannelBroken, ChannelKeyUnknown, CloisterError, MessageExpired, MessageRepeated
from cloister.transparency.log import Log
from cloister.transparency.manifest import FORMAT, Manifest
from cloister.transparency.note import SigningKey
from cloister.transparency.proof import Release, publish
from tests.attest.statements import SETTINGS, statement
from tests.client.http_server import Received, Reply, Server, http_server, reply

MODEL = "made-up"
KEY = "sk-of-the-test"
CONFLICTS = (ChannelKeyUnknown, MessageRepeated, MessageExpired)
STATUS = {ChannelBroken.code: 400, **{kind.code: 409 for kind in CONFLICTS}}


def manifest_of(version: str) -> bytes:
    files = {"src/cloister/__init__.py": hashlib.sha256(version.encode()).hexdigest()}
    return Manifest(FORMAT, version, files, None, None).encoded()


def release_in(folder: Path, *, version: str = "1.0.0", key: SigningKey | None = None, others: int = 0) -> Release:
    """A release in a log of its own, after `others` entries."""
    key = key or SigningKey.generate("development/test")
    log = Log.create(folder, key)
    for number in range(others):
        log.append(b"another entry %d" % number, key)
    publish(log, manifest_of(version), key)
    return Release(manifest_of(version), folder, str(key.verifier))


@dataclass
class Opened:
    """One sealed request as the node read it."""

    request: InnerRequest
    prompts: list[Any]

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.request.headers)

    @property
    def body(self) -> Any:
        return json.loads(self.request.body)


@dataclass
class FakeNode:
    release: Release | None
    missing_layers: tuple[str, ...] = ()
    levels: tuple[str, ...] = ("open", "partitioned")
    settings: AttestedSettings = SETTINGS
    clock_ahead_s: float = 0.0
    """Of ours; a node's clock may show anything."""
    key_held_s: float = 4000.0
    started: int = 1_700_000_000
    in_the_clear: list[Received] = field(default_factory=list)
    opened: list[Opened] = field(default_factory=list)
    evidence_asked: int = 0
    words: tuple[str, ...] = ("so ", "it ", "is ")
    said: int = 0
    """How many words were sent, to whoever."""
    think_s: float = 0.0
    pause_s: float = 0.0
    head_headers: tuple[tuple[str, str], ...] = ()
    server: Server = field(default_factory=Server)
    attester: Attester = field(default_factory=SoftwareAttester)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def url(self) -> str:
        return self.server.url

    def now_ms(self) -> int:
        return int(1000 * (time.time() + self.clock_ahead_s))

    def times(self) -> dict[str, int]:
        now = self.now_ms()
        return {"made_ms": now, "key_until_ms": now + int(1000 * self.key_held_s)}

    def restart(self) -> None:
        """Lose the channel key, as a node does that starts again: it is another process then."""
        self.instance = secrets.token_bytes(32)
        self.channel_key = ChannelKey.generate()
        self.seen = SeenMessages()

    async def handle(self, received: Received) -> Reply:
        if received.path.endswith("/v1/evidence"):
            self.evidence_asked += 1
            asked = json.loads(received.body)
            return reply(200, write_evidence(self.evidence(bytes.fromhex(asked["nonce"]), asked["since"])))
        if received.path.endswith("/v1/sealed"):
            return await self.sealed(received)
        if received.path != "/ready":  # asked by another test's cloud, whose node had this port before
            self.in_the_clear.append(received)
        status, kind, pieces = self.answer(received.method, received.path, received.body, [])
        return Reply(status, kind, pieces)

    def evidence(self, nonce: bytes, since: int) -> NodeEvidence:
        facts = {"model": MODEL, "missing_layers": self.missing_layers, "levels": self.levels, "started": self.started}
        facts |= {"instance": self.instance}
        said = statement(self.settings, **facts, **self.times())
        measurement = self.release.measurement if self.release else bytes(32)
        bound = bind(nonce, self.channel_key.public, measurement, b"", said)
        attestation = self.attester.attest(bound)
        return NodeEvidence(
            version=VERSION,
            tee=attestation.tee,
            report=attestation.report,
            certificates=attestation.certificates,
            channel_key=self.channel_key.public,
            measurement=measurement,
            statement=said,
            release=self.release.prove(since) if self.release else None,
        )

    async def sealed(self, received: Received) -> Reply:
        try:
            assert received.headers["content-type"] == CONTENT_TYPE
            envelope = Envelope.decode(received.body)
            if envelope.key_id != self.channel_key.key_id:
                raise ChannelKeyUnknown("This key is not held here.")
            self.seen.add(envelope.enc)
            keys = self.channel_key.accept(envelope.enc)
            request = InnerRequest.decode(open_request(keys.request, envelope.enc, envelope.request))
            request.validity.check(self.now_ms())
            prompts = [
                json.loads(open_prompt(keys.prompt, envelope.enc, index, sealed))
                for index, sealed in enumerate(envelope.prompts)
            ]
        except CloisterError as error:
            body = {"error": {"message": str(error), "type": "x", "param": None, "code": error.code}}
            return reply(STATUS[error.code], json.dumps(body).encode())
        self.opened.append(Opened(request, prompts))
        status, kind, pieces = self.answer(request.method, request.path, request.body, prompts, request.headers)
        return Reply(200, CONTENT_TYPE, self._seal(StreamSealer(keys.response, envelope.enc), status, kind, pieces))

    async def _seal(
        self, sealer: StreamSealer, status: int, kind: str, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        yield sealer.head(InnerHead(status, (("content-type", kind), *self.head_headers)).encode())
        async for piece in pieces:
            yield sealer.data(piece)
        yield sealer.end()

    def answer(
        self, method: str, path: str, body: bytes, prompts: list[Any], headers: tuple[tuple[str, str], ...] = ()
    ) -> tuple[int, str, AsyncIterator[bytes]]:
        """The tiny API: says its words back, with how many prompts it got."""
        if method == "GET" and path.endswith("/v1/models"):
            return 200, "application/json", _json({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        if headers and dict(headers).get("authorization") != f"Bearer {KEY}":
            return 401, "application/json", _json({"error": {"message": "No such key.", "code": "invalid_api_key"}})
        if not path.endswith("/completions"):
            return 404, "application/json", _json({"error": {"message": "Nothing here.", "code": "not_found"}})
        asked = json.loads(body)
        chat = path.endswith("/chat/completions")
        if not asked.get("stream"):
            text = "".join(self.words)
            said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, "finish_reason": "stop", "logprobs": None, **said}
            return 200, "application/json", _json(_document(chat, [choice], chunk=False))
        return 200, "text/event-stream", self._events(chat)

    async def _events(self, chat: bool) -> AsyncIterator[bytes]:
        await asyncio.sleep(self.think_s)
        for word in self.words:
            said: dict[str, Any] = {"delta": {"content": word}} if chat else {"text": word}
            self.said += 1
            yield _event(_document(chat, [{"index": 0, "finish_reason": None, **said}], chunk=True))
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
        last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        yield _event(_document(chat, [{"index": 0, "finish_reason": "stop", **last}], chunk=True))
        yield b"data: [DONE]\n\n"


def _document(chat: bool, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
    kind = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
    usage = {} if chunk else {"usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}}
    return {"id": "x", "object": kind, "created": 1, "model": MODEL, "choices": choices, **usage}


async def _json(document: object) -> AsyncIterator[bytes]:
    yield json.dumps(document).encode()


def _event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


@contextmanager
def running(node: FakeNode, port: int = 0) -> Iterator[FakeNode]:
    with http_server(node.handle, port) as server:
        node.server = server
        yield node
