"""One HTTP request as a sealed message: what stays, what goes, and which key each part is sealed under.

Prompts are taken out of the body and sealed one by one for the vault alone; the rest of the request is sealed for the
process that speaks OpenAI's API. Nothing of the user's is left outside: no header, no path, no length to the byte.
This module knows no sockets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from cloister.channel.envelope import CONTENT_TYPE, MAX_PROMPTS, Envelope, InnerRequest
from cloister.channel.keys import address_to, key_id
from cloister.channel.sealing import seal_prompt, seal_request
from cloister.channel.stream import StreamOpener
from cloister.errors import ChannelBroken, InvalidRequest
from cloister.levels import OPEN

ENDPOINT = "/v1/sealed"
OUTER_HEADERS = (("Content-Type", CONTENT_TYPE), ("Accept", CONTENT_TYPE))
"""All that is said outside, the same for every user."""

PROMPT_FIELDS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
LEVEL_HEADER = "x-cloister-protection"

# RFC 9110 §7.6.1, and what describes the user's machine rather than the request.
HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
_LEFT_OUT = HOP_BY_HOP | {"host", "content-length", "accept-encoding", "user-agent", "expect", "origin", "referer"}
_LEFT_OUT_PREFIXES = ("x-stainless-", "sec-")

Headers = Iterable[tuple[str, str]]
_Fields = dict[str, msgspec.Raw]


class SealedMessage(NamedTuple):
    """What to send, and what opens the answer."""

    envelope: bytes
    opener: StreamOpener


def seal_message(channel_key: bytes, method: str, path: str, headers: Headers, body: bytes) -> SealedMessage:
    """The request, sealed to the holder of the channel key; InvalidRequest if it is none that a node could answer."""
    kept = kept_headers(headers)
    body, prompts = split_prompts(method, path, kept, body)
    try:
        inner = msgspec.convert((method, path, kept, body), InnerRequest)
    except msgspec.ValidationError:
        raise InvalidRequest("The request's method, path or headers are not what HTTP allows, or too long.") from None
    enc, keys = address_to(channel_key)
    try:
        request = seal_request(keys.request, enc, inner.encode())
        sealed = tuple(seal_prompt(keys.prompt, enc, index, prompt) for index, prompt in enumerate(prompts))
        envelope = Envelope(key_id(channel_key), enc, request, sealed).encode()
    except ChannelBroken as too_large:
        raise InvalidRequest(too_large.message, hint=too_large.hint) from None
    opener = StreamOpener(bytearray(keys.response), enc)
    keys.erase()
    return SealedMessage(envelope, opener)


def kept_headers(headers: Headers) -> tuple[tuple[str, str], ...]:
    """The headers that are part of the request: neither of the connection nor of the machine it was made on."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {each.strip() for name, value in pairs if name == "connection" for each in value.lower().split(",")}
    return tuple(
        (name, value)
        for name, value in pairs
        if name not in _LEFT_OUT and name not in named and not name.startswith(_LEFT_OUT_PREFIXES)
    )


def split_prompts(method: str, path: str, headers: Headers, body: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """The body without its prompts, and the prompts, each as the JSON it was.

    At the level `open`, where the provider may see all of it, the body stays whole.
    """
    field = PROMPT_FIELDS.get(path.partition("?")[0].rstrip("/")) if method == "POST" else None
    if field is None:
        return body, ()
    try:
        fields = msgspec.json.decode(body, type=_Fields)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # Sent on as it is, it would be refused all the same, and read by who must not read it.
        raise InvalidRequest("The body is not a JSON object.") from None
    if field not in fields or _is_open(fields, headers):
        return body, ()
    prompts = _prompts(bytes(fields[field])) if field == "prompt" else (bytes(fields[field]),)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"At most {MAX_PROMPTS} prompts are supported in one request.", param=field)
    fields[field] = msgspec.Raw(b'{"sealed":%d}' % len(prompts))
    return msgspec.json.encode(fields), prompts


def _is_open(fields: _Fields, headers: Headers) -> bool:
    """Whether every place that names a level names `open`: who contradicts themselves is not taken for open."""
    asked = [f'"{value}"' for name, value in headers if name.lower() == LEVEL_HEADER]
    if "protection" in fields and (in_body := bytes(fields["protection"]).decode("utf-8", "replace")) != "null":
        asked.append(in_body)
    return bool(asked) and all(each == f'"{OPEN}"' for each in asked)


def _prompts(value: bytes) -> tuple[bytes, ...]:
    """One prompt, or each of several: a list is several unless it holds token ids."""
    if not value.startswith(b"["):
        return (value,)
    each = msgspec.json.decode(value, type=list[msgspec.Raw])
    if not each or bytes(each[0])[:1] in b"-0123456789":
        return (value,)
    return tuple(bytes(one) for one in each)
