"""One HTTP request as a sealed message, whole only with its authenticated end. A refusal in the clear may be forged:
only its status and a known code are passed on."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, get_args

import msgspec

from cloister import responses
from cloister.channel.envelope import CONTENT_TYPE, MAX_PROMPTS, Envelope, InnerHead, InnerRequest, Validity
from cloister.channel.sealing import address_to, key_id, seal_prompt, seal_request
from cloister.channel.stream import FrameKind, StreamOpener
from cloister.client.winnow import Headers, IndexSecrets, Winnower, obfuscates
from cloister.errors import (
    ChannelBroken,
    ChannelKeyUnknown,
    CloisterError,
    InvalidRequest,
    MessageExpired,
    MessageRepeated,
    WaitingForKey,
)
from cloister.grammar.form import FIELDS as FORM_FIELDS
from cloister.grammar.form import form_of
from cloister.levels import LEVELS, ReadLevel
from cloister.request_fields import EFFORTS, LEVEL_HEADER, SAY_NOTHING, SESSION_HEADER, UNUSED, refuse_repeated_names

ENDPOINT = "/v1/sealed"
OUTER_HEADERS = (("Content-Type", CONTENT_TYPE), ("Accept", CONTENT_TYPE))  # the same for every user
CHAT = "/v1/chat/completions"
PROMPT_FIELDS = {CHAT: "messages", "/v1/completions": "prompt", "/v1/embeddings": "input", responses.PATH: "input"}
PARAMETERS = frozenset(
    (
        *("model", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens", "seed", "stop"),
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *(
            "logit_bias",
            "logprobs",
            "top_logprobs",
            "prompt_logprobs",
            "echo",
            "ignore_eos",
            "min_tokens",
            "stop_token_ids",
        ),
        *("encoding_format", "dimensions"),
        *("protection", "session", "mpc_reveal", "cache_salt", "obfuscation", "stop_recitation", "verify"),
        *("calls_tools", "parallel_tool_calls", "enable_thinking"),
    )
)
"""Fields that the process with OpenAI's API reads. It reads the answer too, but no prompt."""
# RFC 9110 §7.6.1, and what describes the user's machine rather than the request.
_OF_PROXIES = ("proxy-authenticate", "proxy-authorization", "proxy-connection")
HOP_BY_HOP = frozenset((*_OF_PROXIES, "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"))
_LEFT_OUT = frozenset(("host", "content-length", "accept-encoding", "user-agent", "expect", "origin", "referer"))
_LEFT_OUT_PREFIXES = ("x-stainless-", "sec-")
_Fields = dict[str, msgspec.Raw]
_NULL, _SWITCHES = msgspec.Raw(b"null"), (b"true", b"false")
_EFFORTS = (b"null", *(f'"{effort}"'.encode() for effort in EFFORTS))
_FREE = (b"null", b'"none"', b'"auto"')  # choices of tools that need no form


class SealedMessage(NamedTuple):
    envelope: bytes
    opener: StreamOpener
    validity: Validity
    winnower: Winnower | None = None


def seal_message(
    channel_key: bytes, method: str, path: str, headers: Headers, body: bytes, node_ms: int, secrets: IndexSecrets
) -> SealedMessage:
    """`node_ms`: the time by the node's clock. `secrets` are the same for every message that a request is sent with."""
    kept = kept_headers(headers)
    body, prompts, winnower = split_prompts(method, path, kept, body, secrets)
    validity = Validity.beginning(node_ms, len(body) + sum(map(len, prompts)))
    try:
        inner = msgspec.convert((method, path, kept, body, validity), InnerRequest)
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
    return SealedMessage(envelope, opener, validity, winnower)


def end_to_end(headers: Headers) -> list[tuple[str, str]]:
    """The headers that are not of one connection alone (RFC 9110 §7.6.1), their names in lower case."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {each.strip() for name, value in pairs if name == "connection" for each in value.lower().split(",")}
    return [(name, value) for name, value in pairs if name not in HOP_BY_HOP and name not in named]


def kept_headers(headers: Headers) -> tuple[tuple[str, str], ...]:
    """The headers that are part of the request: neither of the connection nor of the machine it was made on."""
    pairs = ((name, value) for name, value in end_to_end(headers) if not name.startswith(_LEFT_OUT_PREFIXES))
    return tuple((name, value) for name, value in pairs if name not in _LEFT_OUT)


class Split(NamedTuple):
    """A body's parameters, its prompts as JSON, and what picks the real answer out at a level that hides prompts."""

    body: bytes
    prompts: tuple[bytes, ...] = ()
    winnower: Winnower | None = None


def split_prompts(
    method: str, path: str, headers: Headers, body: bytes, secrets: IndexSecrets, *, alone: bool = False
) -> Split:
    """Unknown fields are refused: they might hold a prompt's text. At a ReadLevel the body stays whole. `alone`: no
    answer is picked from several, also where the level has several."""
    path = path.partition("?")[0].rstrip("/")
    field = PROMPT_FIELDS.get(path) if method == "POST" else None
    if field is None:
        if body:
            hint = f"Sealed are POST {' and '.join(PROMPT_FIELDS)}."
            raise InvalidRequest("This path's body cannot be sealed.", hint=hint)
        return Split(body)
    try:
        fields = msgspec.json.decode(body, type=_Fields)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # Sent on, it would be refused as well, and read by a process that must not read it.
        raise InvalidRequest("The body is not a JSON object.") from None
    refuse_repeated_names(body)
    levels = _levels(fields, headers)
    if len(set(levels)) == 1 and levels[0] in get_args(ReadLevel):  # a contradiction is not for reading
        return Split(body)
    if path == responses.PATH:
        return _split_response(body, headers, secrets)
    given = fields.pop(field, None)
    choice = bytes(fields.get("tool_choice", _NULL)) if field == "messages" else b"null"
    form, beside = _form(fields), _beside(fields) if field == "messages" else b""
    kept = {name: value for name, value in fields.items() if _is_parameter(name, value)}
    asked = [LEVELS[level] for level in levels if level in LEVELS]
    if form or choice not in _FREE:
        for level in asked:
            level.refuse({"response_format"})
        kept["constrained"] = msgspec.Raw(b"true")
    if given is None:  # the node says what is missing
        return Split(msgspec.json.encode(kept))
    prompts = _prompts(bytes(given)) if field != "messages" else (bytes(given),)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"At most {MAX_PROMPTS} prompts are supported in one request.", param=field)
    beside += b',"form":%b' % form.encode() if form else b""
    used = _used(field, kept, prompts, headers) | ({"alone"} if alone or "constrained" in kept else set())
    winnower = None
    if obfuscates(levels):
        if alone := all(level.way(used) != level.name for level in asked):
            kept.pop("obfuscation", None)  # its substitutes are of no use here, and secrets
            kept |= {} if field == "input" else {"alone": msgspec.Raw(b"true")}
        hidden = [Winnower.hiding(secrets, headers, kept, prompt, beside) for prompt in prompts]
        winnower, prompts = None if alone else hidden[0][0], tuple(written for _, written in hidden)
    elif beside:
        prompts = tuple(b'{"given":%b%b}' % (prompt, beside) for prompt in prompts)
    kept[field] = msgspec.Raw(b'{"sealed":%d}' % len(prompts))
    return Split(msgspec.json.encode(kept), prompts, winnower)


def _used(field: str, fields: _Fields, prompts: tuple[bytes, ...], headers: Headers) -> set[str]:
    """What a level may not be able to hide (Level.alone)."""
    used = {"prompt"} if len(prompts) > 1 else set()
    used |= {"input"} if field == "input" else set()
    used |= {"n"} if bytes(fields.get("n", _NULL)) not in (b"null", b"1", b"1.0") else set()
    named = bytes(fields.get("session", _NULL)) != b"null" or any(
        h.lower() == SESSION_HEADER.lower() for h, _ in headers
    )
    if field == "messages" and not named:
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):  # the vault says what is wrong
            roles = [one.get("role") for one in msgspec.json.decode(prompts[0], type=list[dict[str, Any]])]
            used |= {"history"} if "assistant" in roles else set()
    return used


def _beside(fields: _Fields) -> bytes:
    """Tools and words for the template, taken out of the fields: they are sealed with the messages. What stays is
    what the process that reads the answer needs: whether tools were offered, and whether the model thinks."""
    tools = {name: fields.pop(name, _NULL) for name in ("tools", "tool_choice")}
    words, thinks = fields.pop("chat_template_kwargs", _NULL), bytes(fields.get("enable_thinking", _NULL))
    thinks = thinks if thinks in _SWITCHES else b"null"  # the node refuses any other value
    effort = bytes(fields.pop("reasoning_effort", _NULL))
    if effort not in _EFFORTS:
        hint = f"Give one of {', '.join(EFFORTS)}."
        raise InvalidRequest("reasoning_effort: This is no effort.", param="reasoning_effort", hint=hint)
    offered, beside = bytes(tools["tools"]) not in (b"null", b"[]"), b""
    if offered or bytes(tools["tool_choice"]) not in _FREE:
        parallel = bytes(fields.get("parallel_tool_calls", _NULL))
        beside = b',"tools":{"tools":%b,"choice":%b,"parallel":%b}' % (*map(bytes, tools.values()), parallel)
        fields["calls_tools"] = msgspec.Raw(b"false" if bytes(tools["tool_choice"]) == b'"none"' else b"true")
    if not {bytes(words), thinks, effort} <= {b"null"}:
        merged = _merged(bytes(words), {"enable_thinking": thinks, "reasoning_effort": effort})
        beside += b',"template":%b' % msgspec.json.encode(merged)
        if (said := merged.get("enable_thinking", merged.get("thinking"))) is not None and bytes(said) in _SWITCHES:
            fields["enable_thinking"] = said
    return beside


def _merged(words: bytes, said: dict[str, bytes]) -> _Fields:
    said = {name: value for name, value in said.items() if value != b"null"}
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        merged = msgspec.json.decode(words, type=_Fields | None) or {}
        if all(bytes(merged.setdefault(name, msgspec.Raw(value))) == value for name, value in said.items()):
            return merged
    what = "This is no object, or says something else than enable_thinking or reasoning_effort."
    raise InvalidRequest(f"chat_template_kwargs: {what}", param="chat_template_kwargs")


def is_obfuscated(headers: Headers, body: bytes) -> bool:
    """Whether the node is asked to hide the prompt among made-up ones. A body that does not decode is not sent."""
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return obfuscates(_levels(msgspec.json.decode(body, type=_Fields), headers))
    return False


def _form(fields: _Fields) -> str:
    """What the answer must look like, taken out of the fields: it goes with the prompt."""
    given = {name: fields.pop(name) for name in FORM_FIELDS if name in fields}
    try:
        return form_of({name: msgspec.json.decode(value) for name, value in given.items()})
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidRequest("The body is not a JSON object.") from None


def _is_parameter(name: str, value: msgspec.Raw) -> bool:
    """Whether the field goes with the request; InvalidRequest for one that may be neither sent nor left out."""
    if name in PARAMETERS:
        return True
    if name in UNUSED:
        return False
    if name in SAY_NOTHING:
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            if msgspec.json.decode(value) in SAY_NOTHING[name]:
                return False
        raise InvalidRequest(f"{name} is not supported, and would not be sealed.", param=name)
    hint = "Check how it is spelt."
    raise InvalidRequest(f"The field {name[:64]!r} is not known and cannot be sealed.", param=name[:64], hint=hint)


def _levels(fields: _Fields, headers: Headers) -> list[str]:
    asked = [value for name, value in headers if name.lower() == LEVEL_HEADER.lower()]
    if "protection" in fields and (in_body := bytes(fields["protection"]).decode("utf-8", "replace")) != "null":
        asked.append(in_body[1:-1] if in_body[:1] == in_body[-1:] == '"' else in_body)
    return asked


def _prompts(value: bytes) -> tuple[bytes, ...]:
    """One prompt, or each of several: a list is several unless it holds token ids."""
    if not value.startswith(b"["):
        return (value,)
    each = msgspec.json.decode(value, type=list[msgspec.Raw])
    if not each or bytes(each[0])[:1] in b"-0123456789":
        return (value,)
    return tuple(bytes(one) for one in each)


def _split_response(body: bytes, headers: Headers, secrets: IndexSecrets) -> Split:
    """What a chat would seal is sealed, as it would be; the rest keeps its names here. Of several answers the client
    picks one in chats alone."""
    try:
        split = split_prompts("POST", CHAT, headers, responses.chat_body(body), secrets, alone=True)
    except InvalidRequest as refused:
        raise responses.renamed(refused) from None
    rest = responses.responses_fields(responses.read_fields(split.body))
    return split._replace(body=json.dumps(rest).encode())


LAST_EVENT = b"data: [DONE]\n\n"  # readers stop here: it is held until the answer is whole
MAX_REFUSAL_BYTES = 64 * 1024
_MAX_RETRY_AFTER_S = 60
_CODES = {
    **dict.fromkeys(("queue_full", "service_unavailable", "body_too_large", "body_timeout", "not_found"), ""),
    "foreign_host": "",
    WaitingForKey.code: " It says that it waits for the key of its weights, which their provider releases with "
    "`cloister weights release`.",
}
"""Codes that are passed on, and what to add for the user."""


class SealedAnswer:
    def __init__(self, opener: StreamOpener, winnower: Winnower | None = None) -> None:
        self._opener = opener
        self._winnower = winnower
        self._held = b""
        self.head: InnerHead | None = None

    @property
    def ended(self) -> bool:
        return self._opener.ended

    def feed(self, data: bytes) -> bytes:
        pieces = [self._held] if self._held else []
        for kind, content in self._opener.feed(data):
            if kind is FrameKind.DATA:
                pieces.append(content)
            elif kind is FrameKind.HEAD:
                head = InnerHead.decode(content)
                self.head = head if self._winnower is None else self._winnower.head(head)
        believed = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if believed.endswith(LAST_EVENT) and not self._opener.ended:
            self._held = believed
            return b""
        self._held = b""
        return believed if self._winnower is None else self._winnower.winnow(believed, self._opener.ended)

    def finish(self) -> None:
        """The connection's answer is over: ChannelBroken unless the sealed one is."""
        self._opener.finish()

    def close(self) -> None:
        self._opener.close()


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    message: str
    code: str | None = None
    retry_after: int | None = None
    param: str | None = None
    final: bool = False  # The refusal is not authenticated, so its headers ask programs not to send the request again.

    @classmethod
    def of(cls, error: CloisterError, status: int = 400) -> Self:
        param = error.param if isinstance(error, InvalidRequest) else None
        return cls(status, str(error), error.code, param=param, final=isinstance(error, ChannelBroken))

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        again = () if self.retry_after is None else (("retry-after", str(self.retry_after)),)
        never = (("x-should-retry", "false"),) if self.final else ()  # OpenAI's SDKs go by it
        return (("content-type", "application/json"), ("content-length", str(len(self.body))), *again, *never)

    @property
    def body(self) -> bytes:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def is_sealed(status: int, content_type: str) -> bool:
    return status == 200 and content_type.partition(";")[0].strip().lower() == CONTENT_TYPE


def read_refusal(status: int, retry_after: str, body: bytes) -> Refusal:
    if not 400 <= status <= 599:
        hint = "Another server answers in its place, or it is no Cloister node. The answer was not read."
        raise ChannelBroken(f"The node answered a sealed request without a seal (HTTP {status}).", hint=hint)
    code = _code(body)
    if status == 409 and code == ChannelKeyUnknown.code:
        raise ChannelKeyUnknown("The node no longer holds the channel key that it was verified with.")
    if status == 409 and code == MessageRepeated.code:
        raise MessageRepeated("The node has received this message before.", hint="Messages are repeated on the way.")
    if status == 409 and code == MessageExpired.code:
        hint = "Messages are held back on the way."
        raise MessageExpired("The node says that the sealed request came too late.", hint=hint)
    if code == ChannelBroken.code:
        raise ChannelBroken("The node could not open the sealed request.", hint="It was altered on its way.")
    known = code if code in _CODES else None
    seconds = int(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6 else None
    named = f", {known}" if known else ""
    message = f"The sealed request was refused before it reached the node's inside (HTTP {status}{named})."
    message += f"{_CODES.get(known or '', '')} This refusal is not authenticated."
    later = None if seconds is None else min(seconds, _MAX_RETRY_AFTER_S)
    return Refusal(status, message, known, later, final=True)


def _code(body: bytes) -> str | None:
    try:
        code = msgspec.json.decode(body[:MAX_REFUSAL_BYTES])["error"].get("code")
    except (msgspec.MsgspecError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return code if isinstance(code, str) else None
