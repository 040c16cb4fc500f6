"""A client that speaks to a server through the secure channel and verifies nothing: made of `transport` alone."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from cloister.channel.envelope import CONTENT_TYPE, Envelope, InnerHead, InnerRequest, Validity
from cloister.channel.sealing import RequestKeys, address_to, key_id, seal_prompt, seal_request
from cloister.channel.stream import FrameKind, StreamOpener
from cloister.config import DEVELOPMENT_KEY

FIELDS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}


class SealedReply:
    """An answer as it comes: `head` once there is one, then pieces of the body."""

    def __init__(self, response: httpx.Response, opener: StreamOpener) -> None:
        self.response = response
        self._opener = opener
        self._frames = self._read()
        first = next(self._frames)
        self.head = InnerHead.decode(first)

    def _read(self) -> Iterator[bytes]:
        for chunk in self.response.iter_raw():
            for frame in self._opener.feed(chunk):
                if frame.kind is not FrameKind.END:
                    yield frame.data
        self._opener.finish()

    def pieces(self) -> Iterator[bytes]:
        return self._frames

    def read(self) -> bytes:
        return b"".join(self._frames)

    @property
    def status(self) -> int:
        return self.head.status

    def json(self) -> Any:
        return json.loads(self.read())


class SealedClient:
    """Asks for the channel key once, and seals each request to it."""

    def __init__(self, url: str, key: str | None = DEVELOPMENT_KEY) -> None:
        self.http = httpx.Client(base_url=url, timeout=600)
        self._headers = (("authorization", f"Bearer {key}"),) if key else ()
        self.channel_key = self.find_key()
        self.last_keys: dict[str, bytes] = {}

    def evidence(self, nonce: bytes | None = None, since: int = 0) -> dict[str, Any]:
        nonce = nonce or secrets.token_bytes(32)
        response = self.http.post("/v1/evidence", json={"nonce": nonce.hex(), "since": since})
        assert response.status_code == 200, response.text
        return response.json()

    def find_key(self) -> bytes:
        self.channel_key = base64.b64decode(self.evidence()["channel_key"])
        return self.channel_key

    def seal(
        self, method: str, path: str, body: Any = None, ago_s: int = 0, **headers: str
    ) -> tuple[bytes, StreamOpener]:
        """The envelope, and what opens its answer. Prompts are split off as a client does."""
        validity = Validity.beginning(time.time_ns() // 1_000_000 - 1000 * ago_s, 0)
        enc, keys = address_to(self.channel_key)
        self.last_keys = {name: bytes(getattr(keys, name)) for name in ("request", "prompt", "response")}
        envelope = Envelope(
            key_id(self.channel_key), enc, *self._parts(keys, enc, method, path, body, headers, validity)
        )
        return envelope.encode(), StreamOpener(keys.response, enc)

    def _parts(
        self, keys: RequestKeys, enc: bytes, method: str, path: str, body: Any, headers: dict[str, str], valid: Validity
    ) -> tuple[bytes, tuple[bytes, ...]]:
        prompts: list[bytes] = []
        field = FIELDS.get(path)
        if field in (body or {}) and body.get("protection") != "open":
            given = body[field]
            several = field == "prompt" and isinstance(given, list) and given and not isinstance(given[0], int)
            prompts = [json.dumps(one).encode() for one in (given if several else [given])]
            body = {**body, field: {"sealed": len(prompts)}}
        data = b"" if body is None else json.dumps(body).encode()
        kind = (("content-type", "application/json"),) if data else ()
        inner = InnerRequest(method, path, (*self._headers, *kind, *headers.items()), data, valid)
        sealed = tuple(seal_prompt(keys.prompt, enc, index, prompt) for index, prompt in enumerate(prompts))
        return seal_request(keys.request, enc, inner.encode()), sealed

    def post(self, envelope: bytes) -> httpx.Response:
        """Send a sealed request as it is; the answer is read, and is bytes."""
        return self.http.post("/v1/sealed", content=envelope, headers={"Content-Type": CONTENT_TYPE})

    @contextmanager
    def asking(self, method: str, path: str, body: Any = None, **headers: str) -> Iterator[SealedReply]:
        envelope, opener = self.seal(method, path, body, **headers)
        with self.http.stream(
            "POST", "/v1/sealed", content=envelope, headers={"Content-Type": CONTENT_TYPE}
        ) as response:
            if response.status_code != 200:
                raise AssertionError((response.status_code, response.read()))
            yield SealedReply(response, opener)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of the inner answer."""
        with self.asking(method, path, body, **headers) as reply:
            return reply.status, reply.read()
