"""The client's part at the level `obfuscated`: it draws the secret that the real answer's place comes from, seals it
with the prompt for the vault alone, and picks the real answer out of the λ+1 that come ("winnowing", §3.2).

No sockets. What comes may be cut anywhere; what is handed on is one ordinary answer. All streams end together, so that
reading one of them to its end says nothing.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from cloister.channel.envelope import InnerHead
from cloister.errors import ChannelBroken, InvalidRequest
from cloister.levels import LEVELS, MOST_FAKES, VaultLevel
from cloister.obfuscation.index import REQUEST, Prf, new_secret
from cloister.request_fields import SEQUENCES_HEADER

_HIDING = frozenset(level for level in get_args(VaultLevel) if LEVELS[level].hides)
_EVENT_END = b"\n\n"
_DATA = b"data: "
MAX_ANSWER_BYTES = 64 * 1024 * 1024

Fields = dict[str, msgspec.Raw]


def hides(levels: Iterable[str]) -> bool:
    """Whether one of the levels that a request names is one at which its answer is one of several."""
    return not _HIDING.isdisjoint(levels)


class Winnower:
    """Of one request."""

    def __init__(self) -> None:
        self._secret = new_secret()
        self._authentic: int | None = None
        self._streamed = False
        self._held = b""

    def hide(self, fields: Fields, prompts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The prompts with what only their vault may know. Substitutes are taken out of the request's fields."""
        if len(prompts) != 1:
            return prompts  # refused by the node
        hidden: dict[str, Any] = {"index_secret": b64encode(self._secret).decode()}
        if "obfuscation" in fields and (substitutes := _without_substitutes(fields)) is not None:
            hidden["substitutes"] = substitutes
        return (b'{"hidden":%b,"given":%b}' % (json.dumps(hidden).encode(), prompts[0]),)

    def head(self, head: InnerHead) -> InnerHead:
        """The answer's head as it will be for one answer; ChannelBroken where the node does not say of how many."""
        if head.status != 200:
            return head
        headers = {name.lower(): value for name, value in head.headers}
        count = headers.get(SEQUENCES_HEADER.lower(), "")
        if not (count.isascii() and count.isdigit() and 2 <= int(count[:4]) <= MOST_FAKES + 1):
            raise ChannelBroken(
                "The node does not say among how many answers the real one is.",
                hint="It did not hide the prompt as asked. The answer was not read.",
            )
        self._authentic = Prf(self._secret).order(REQUEST, int(count)).authentic
        self._streamed = headers.get("content-type", "").startswith("text/event-stream")
        kept = tuple((name, value) for name, value in head.headers if name.lower() != "content-length")
        return InnerHead(head.status, kept)

    def winnow(self, data: bytes, ended: bool) -> bytes:
        """What of this belongs to the real answer. A whole answer is handed on when all of it is here."""
        if self._authentic is None:
            return data
        self._held += data
        if len(self._held) > MAX_ANSWER_BYTES:
            raise ChannelBroken("The node's answer does not end.")
        if not self._streamed:
            whole, self._held = (self._picked(self._held), b"") if ended else (b"", self._held)
            return whole
        *events, self._held = self._held.split(_EVENT_END)
        return b"".join(self._event(event) for event in events)

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(_DATA + b"{"):
            return event + _EVENT_END  # a comment, or the last
        picked = self._picked(event[len(_DATA) :])
        return _DATA + picked + _EVENT_END if picked else b""

    def _picked(self, written: bytes) -> bytes:
        """The object with the real choice alone; nothing where that is not among its choices."""
        try:
            answer = json.loads(written)
            choices = answer.get("choices")
            if not choices:  # an error, or the usage
                return written
            kept = [choice for choice in choices if choice["index"] == self._authentic]
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            raise ChannelBroken("The node's answer is not one of OpenAI's API.") from None
        if not kept:
            return b""
        answer["choices"] = [{**choice, "index": 0} for choice in kept]
        return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


def _without_substitutes(fields: Fields) -> Any:
    """Take the substitutes out of the field `obfuscation`; how many they are stays."""
    try:
        options = msgspec.json.decode(fields["obfuscation"], type=dict[str, Any] | None)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidRequest("obfuscation: This is not a JSON object.", param="obfuscation") from None
    if options is None or (given := options.pop("substitutes", None)) is None:
        return None
    if isinstance(given, list):
        options.setdefault("fakes", len(given))
    fields["obfuscation"] = msgspec.Raw(msgspec.json.encode(options))
    return given
