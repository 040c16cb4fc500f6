"""The client's part at `obfuscated` (§3.2): a sealed secret decides the answer's index. Timing does not show it."""

import json
from base64 import b64encode
from collections import deque
from collections.abc import Iterable
from typing import Any, Self, get_args

import msgspec

from cloister.channel.envelope import InnerHead
from cloister.errors import ChannelBroken, InvalidRequest
from cloister.levels import LEVELS, MOST_FAKES, VaultLevel
from cloister.obfuscation.elsewhere import Elsewhere, marked_secrets, refuse_biases, refuse_words, strings_in
from cloister.obfuscation.index import REQUEST, Positions, Prf, new_secret
from cloister.request_fields import SEQUENCES_HEADER, SESSION_HEADER

_HIDING = frozenset(level for level in get_args(VaultLevel) if LEVELS[level].obfuscates)
_EVENT_END = b"\n\n"
_DATA = b"data: "
MAX_ANSWER_BYTES = 64 * 1024 * 1024
CREDENTIALS = frozenset(("authorization", "api-key", "x-api-key"))  # Headers that identify the caller.
_CALLER_HEADERS = CREDENTIALS | {SESSION_HEADER.lower()}
Fields = dict[str, msgspec.Raw]
Headers = Iterable[tuple[str, str]]


def obfuscates(levels: Iterable[str]) -> bool:
    return not _HIDING.isdisjoint(levels)


class IndexSecrets:
    """One per prompt and caller: a prompt sent again has the same substitutes in the same order and shows no more."""

    def __init__(self) -> None:
        self._prf = Prf(new_secret())

    def of(self, headers: Headers, fields: Fields, prompt: bytes) -> bytes:
        """The secret of a prompt. What else is asked of it (a temperature, a seed) makes no difference."""
        named = [(name.lower(), value) for name, value in headers if name.lower() in _CALLER_HEADERS]
        asked = [bytes(fields.get(name, b"null")) for name in ("session", "obfuscation")]
        return self._prf.secret(msgspec.msgpack.encode((named, asked, prompt)))


class Winnower:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._authentic: int | None = None
        self._streamed = False
        self._unread = b""
        self._positions, self._numbers = Positions(0), frozenset[int]()
        self._real = 0
        self._waiting: deque[tuple[int, bytes]] = deque()  # for when every stream has this number of events

    @classmethod
    def hiding(
        cls, secrets: IndexSecrets, headers: Headers, fields: Fields, prompt: bytes, beside: bytes = b""
    ) -> tuple[Self, bytes]:
        """Substitutes are taken out of the fields. ObfuscationRefused where what is left says a secret. `beside`: what
        is sealed with the prompt, as it stands in the object."""
        secret = secrets.of(headers, fields, prompt + beside)
        hidden: dict[str, Any] = {"index_secret": b64encode(secret).decode()}
        try:
            given = msgspec.json.decode(fields.get("obfuscation", b"null"), type=dict[str, Any] | None)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise InvalidRequest("obfuscation: This is not a JSON object.", param="obfuscation") from None
        options = given or {}
        if (substitutes := options.pop("substitutes", None)) is not None:
            hidden["substitutes"] = substitutes
            if isinstance(substitutes, list):
                options.setdefault("fakes", len(substitutes))
            fields["obfuscation"] = msgspec.Raw(msgspec.json.encode(options))
        hidden |= _checked(headers, fields, prompt, beside, searched=bool(options.get("auto_redact")))
        return cls(secret), b'{"hidden":%b,"given":%b%b}' % (json.dumps(hidden).encode(), prompt, beside)

    def head(self, head: InnerHead) -> InnerHead:
        """The answer's head as it will be for one answer; ChannelBroken where the node does not say of how many."""
        if head.status != 200:
            return head
        headers = {name.lower(): value for name, value in head.headers}
        count = headers.get(SEQUENCES_HEADER.lower(), "")
        if not (count.isascii() and count.isdigit() and 2 <= int(count[:4]) <= MOST_FAKES + 1):
            hint = "It did not hide the prompt as asked. The answer was not read."
            raise ChannelBroken("The node does not say among how many answers the real one is.", hint=hint)
        self._authentic = Prf(self._secret).order(REQUEST, int(count)).authentic
        self._positions, self._numbers = Positions(int(count)), frozenset(range(int(count)))
        self._streamed = headers.get("content-type", "").startswith("text/event-stream")
        kept = tuple((name, value) for name, value in head.headers if name.lower() != "content-length")
        return InnerHead(head.status, kept)

    def winnow(self, data: bytes, ended: bool) -> bytes:
        """Of a whole answer all, at its end; of a streamed one as many events as all streams have (`Positions`)."""
        if self._authentic is None:
            return data
        self._unread += data
        if len(self._unread) + sum(len(event) for _, event in self._waiting) > MAX_ANSWER_BYTES:
            raise ChannelBroken("The node's answer does not end.")
        if not self._streamed:
            whole, self._unread = (self._picked(_read(self._unread)), b"") if ended else (b"", self._unread)
            return whole
        *events, self._unread = self._unread.split(_EVENT_END)
        for event in events:
            self._event(event)
        ready = []
        while self._waiting and (ended or self._waiting[0][0] <= self._positions.readable):
            ready.append(self._waiting.popleft()[1])
        return b"".join(ready)

    def _event(self, event: bytes) -> None:
        if not event.startswith(_DATA + b"{"):  # a comment, or the last
            self._waiting.append((self._real, event + _EVENT_END))
            return
        written = event[len(_DATA) :]
        answer = _read(written)
        indices = {choice["index"] for choice in answer.get("choices") or ()}
        if not indices <= self._numbers:
            raise ChannelBroken("The node's answer has more streams than it says.")
        for index in indices:
            self._positions.advance(index)
        self._real += self._authentic in indices
        if not indices:  # an error, or the usage
            self._waiting.append((self._real, event + _EVENT_END))
        elif self._authentic in indices:
            self._waiting.append((self._real, _DATA + self._picked(answer) + _EVENT_END))

    def _picked(self, answer: dict[str, Any]) -> bytes:
        if choices := answer.get("choices"):
            answer["choices"] = [{**choice, "index": 0} for choice in choices if choice["index"] == self._authentic]
        return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def _checked(headers: Headers, fields: Fields, prompt: bytes, beside: bytes, *, searched: bool) -> dict[str, list[str]]:
    """What the vault compares with secrets that it alone knows. Refuses a marked one outside the prompt."""
    try:
        given = msgspec.json.decode(b"[%b,{%b}]" % (prompt, beside[1:]))
        values = {name: msgspec.json.decode(value) for name, value in fields.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidRequest("The body is not a JSON object.") from None
    elsewhere = Elsewhere(marked_secrets(given))
    stops = list(strings_in(values.pop("stop", None)))
    elsewhere.check_stops(stops)
    if searched:
        refuse_words(stops)
    refuse_biases(values.get("logit_bias"))
    for name, value in values.items():
        for text in strings_in(value):
            elsewhere.check(name, text)
    for name, text in headers:
        if name.lower() not in CREDENTIALS:
            elsewhere.check(name, text)
    names = [value for name, value in headers if name.lower() == SESSION_HEADER.lower()]
    names += [value for name in ("session", "cache_salt") if isinstance(value := values.get(name), str)]
    return {"stops": stops, "names": names}


def _read(written: bytes) -> dict[str, Any]:
    """An answer, or an event of one, whose choices have numbers; ChannelBroken where that is none."""
    try:
        answer = json.loads(written)
        if not all(isinstance(choice["index"], int) for choice in answer.get("choices") or ()):
            raise TypeError
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ChannelBroken("The node's answer is not one of OpenAI's API.") from None
    assert isinstance(answer, dict)
    return answer
