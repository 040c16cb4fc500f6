"""A client of Oblivious HTTP made of `channel` alone: it encapsulates what it is given, and opens what comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx

from cloister.channel import bhttp
from cloister.channel.bhttp import Message, RequestHead
from cloister.channel.ohttp import CHUNKED_REQUEST_TYPE, GATEWAY_PATH, REQUEST_TYPE
from cloister.channel.ohttp.chunks import ChunkOpener, ChunkSealer
from cloister.channel.ohttp.encapsulation import (
    ENTROPY_BYTES,
    Form,
    encapsulate,
    open_response,
    request_chain,
    response_chain,
    seal_request,
)
from cloister.channel.ohttp.keys import KeyConfiguration, read_keys

TYPES = {Form.WHOLE: REQUEST_TYPE, Form.CHUNKED: CHUNKED_REQUEST_TYPE}


def json_request(path: str, body: Any, *headers: tuple[str, str]) -> Message:
    fields = (("content-type", "application/json"), *headers)
    return Message(RequestHead("POST", "http", "127.0.0.1", path, fields), json.dumps(body).encode())


class Exchange:
    """One encapsulated request; `sent` is what goes to the relay."""

    def __init__(self, configuration: KeyConfiguration, message: Message | bytes, form: Form = Form.CHUNKED) -> None:
        self.form = form
        self.header, self.keys = encapsulate(configuration, form)
        data = message if isinstance(message, bytes) else bhttp.encode(message)
        if form is Form.WHOLE:
            self.sent = seal_request(self.header, self.keys, data)
        else:
            self.sent = ChunkSealer(request_chain(self.header, self.keys), self.header.encode()).end(data)

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": TYPES[self.form]}

    def opener(self) -> ChunkOpener:
        begins = ENTROPY_BYTES[self.header.aead]
        return ChunkOpener(lambda nonce: response_chain(self.header, self.keys, nonce), begins)

    def opened(self, answer: bytes) -> Message:
        if self.form is Form.WHOLE:
            return bhttp.decode(open_response(self.header, self.keys, answer), 1 << 20)
        opener = self.opener()
        return bhttp.decode(opener.feed(answer) + opener.finish(), 1 << 20)


def configuration_at(url: str) -> KeyConfiguration:
    return read_keys(httpx.get(url + GATEWAY_PATH).content)[0]
