"""GPT-OSS: messages on channels. `analysis` is reasoning, a recipient makes a call, everything else is content."""

import re

from cloister.tools.base import NAME, Call, Parsed, Parser, call, unfinished

_MESSAGE, _CHANNEL = "<|message|>", "<|channel|>"
_OVER = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_ON = re.compile(r"<\|channel\|>\s*(\w+)")
_TO = re.compile(rf"to=functions\.({NAME})")
_BEGINS = (_CHANNEL, "<|start|>", _MESSAGE, " to=", "to=")


class Harmony(Parser):
    markers = (*_OVER, _MESSAGE, _CHANNEL, "<|constrain|>")

    def __init__(self) -> None:
        self._held = ""
        self._header: str | None = None  # of the message under way
        self._first = True

    def push(self, text: str) -> Parsed:
        self._held += text
        found = Parsed()
        while self._between() if self._header is None else self._within(found):
            pass
        return found

    def finish(self) -> Parsed:
        found = Parsed()
        if self._header is not None:
            self._say(found, self._held)
        elif self._first and not self._held.startswith(_BEGINS):  # a header that was cut off is no text
            found.content = self._held
        self._held, self._header, self._first = "", None, False
        return found

    def _between(self) -> bool:
        """Up to the message's text. An answer without a header is content."""
        if self._first and self._held and not any(map(self._may_begin, _BEGINS)):
            self._first, self._header = False, ""
            return True
        header, marker, rest = self._held.partition(_MESSAGE)
        if not marker:
            return False
        self._first, self._header, self._held = False, header, rest
        return True

    def _within(self, found: Parsed) -> bool:
        over = [(at, marker) for marker in _OVER if (at := self._held.find(marker)) >= 0]
        if not over:
            kept = len(self._held) - unfinished(self._held, _OVER)
            if not self._recipient:
                self._say(found, self._held[:kept])
                self._held = self._held[kept:]
            elif self.early:
                found.ahead = Call(self._recipient, self._held[:kept].strip())
            return False
        at, marker = min(over)
        self._say(found, self._held[:at])
        self._header, self._held = None, self._held[at + len(marker) :]
        return True

    @property
    def _recipient(self) -> str:
        to = _TO.search(self._header or "")
        return to[1] if to else ""

    def _say(self, found: Parsed, text: str) -> None:
        on = _ON.search(self._header or "")
        if to := self._recipient:
            one = call(to, text)
            if self.early and one:
                one = Call(to, text.strip())
            elif self.early:  # it was cut off, and its beginning is out
                found.ahead = Call(to, text.strip())
                return
            found.calls += [one] if one else []
            found.content += "" if one else text
        elif on and on[1] == "analysis":
            found.reasoning += text
        else:
            found.content += text

    def _may_begin(self, marker: str) -> bool:
        return self._held.startswith(marker) or marker.startswith(self._held)
