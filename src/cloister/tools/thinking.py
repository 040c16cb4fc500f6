"""Models that think before they answer: <think>…</think> is reasoning, what follows is read by the family's parser."""

from cloister.tools.base import Parsed, Parser, unfinished

PAIRS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought", "<channel|>"))


class Thinking(Parser):
    """`opens`: the prompt ends with the first marker. White space at both ends of the reasoning is dropped."""

    def __init__(self, inner: Parser, pair: tuple[str, str], *, opens: bool) -> None:
        self._inner, self._pair = inner, pair
        self._held, self._spaces = "", ""
        self._thinks: bool | None = True if opens else None  # None: not known yet
        self._may_open = self._begins = True
        self._drops = False  # white space between reasoning and content

    def push(self, text: str) -> Parsed:
        self._held += text
        found = Parsed()
        if self._may_open and not self._open():
            return found
        if self._thinks:
            self._think(found)
        if not self._thinks and self._held:
            text, self._held = self._held, ""
            if self._drops:
                text = text.lstrip()
                self._drops = not text
            found.add(self._inner.push(text))
        return found

    def finish(self) -> Parsed:
        held, self._held = self._held, ""
        if self._thinks:
            return Parsed(reasoning=self._reasoned(held)).add(self._inner.finish())
        found = self._inner.push(held)
        return found.add(self._inner.finish())

    def _open(self) -> bool:
        """Whether it is known if the answer begins with reasoning. Where the prompt did, the marker may come again."""
        first, begin = self._held.lstrip(), self._pair[0]
        if begin.startswith(first) and first != begin:
            return False
        self._may_open = False
        if first.startswith(begin):
            self._thinks, self._held = True, first[len(begin) :]
        elif self._thinks is None:
            self._thinks = False
        return True

    def _think(self, found: Parsed) -> None:
        words, end, rest = self._held.partition(self._pair[1])
        if end:
            found.reasoning += self._reasoned(words)
            self._thinks, self._held, self._drops = False, rest, True
            return
        kept = unfinished(words, self._pair[1:])
        found.reasoning += self._reasoned(words[: len(words) - kept])
        self._held = words[len(words) - kept :]

    def _reasoned(self, text: str) -> str:
        text = self._spaces + text
        text = text.lstrip() if self._begins else text
        self._begins = self._begins and not text
        said = text.rstrip()
        self._spaces = text[len(said) :]
        return said
