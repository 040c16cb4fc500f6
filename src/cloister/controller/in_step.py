"""Several sequences of one request leave in step: no token at position p of any before all have one there. At
`obfuscated` a service that held one back could otherwise learn from the user's reaction whether it was the real one."""

from collections import deque

from msgspec.structs import replace

from cloister.messages.generation import Tokens


class InStep:
    """A request's limit of tokens bounds what is held (`Requests` counts them)."""

    def __init__(self, sequences: int) -> None:
        self._held: list[deque[Tokens]] = [deque() for _ in range(sequences)]
        self._ahead = [0] * sequences

    def passed(self, message: Tokens) -> list[Tokens]:
        """What may leave now that this message came, sequence by sequence; the end of all comes last."""
        self._held[message.sequence].append(replace(message, finish=None))
        self._ahead[message.sequence] += len(message.tokens)
        positions = min(self._ahead)
        if message.finish is None:
            return [part for number in range(len(self._held)) for part in self._take(number, positions)]
        *parts, last = [part for number in range(len(self._held)) for part in self._take(number, self._ahead[number])]
        return [*parts, replace(last, finish=message.finish)]

    def _take(self, number: int, positions: int) -> list[Tokens]:
        """Tokens at this number of positions. A longer message is split; one without tokens goes with the next."""
        taken, held = [], self._held[number]
        self._ahead[number] -= positions
        while held and (positions or not self._ahead[number]):
            message = held.popleft()
            if len(message.tokens) > positions:
                held.appendleft(_after(message, positions))
                message = _until(message, positions)
            positions -= len(message.tokens)
            taken.append(message)
        return taken


def _until(message: Tokens, count: int) -> Tokens:
    scores = message.logprobs
    return replace(message, tokens=message.tokens[:count], logprobs=None if scores is None else scores[:count])


def _after(message: Tokens, count: int) -> Tokens:
    """The rest. Fields that come once in a request went with the first part."""
    scores = message.logprobs
    rest = None if scores is None else scores[count:]
    return Tokens(message.request_id, message.tokens[count:], rest, sequence=message.sequence)
