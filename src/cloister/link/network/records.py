"""What travels between the bridges of a link, and the two ends of shared memory that it is read from and written to.

    question | number | layer  | rows | the rows asked for | their queries
    answer   | number | status | rows | the parts of each row and head
    control  | bytes of the control socket
    handshake | what the server wants (messages.network_link)

Both ends follow link.h: each keeps its own count of questions, and copies what it received before it trusts a number in
it. They always say that they sleep, so that the other side always wakes them."""

import struct
from collections.abc import Callable

from cloister.errors import ProtocolError
from cloister.link.memory import ASK_BYTES, CLOSED, NUMBER_AT, ROWS_AT, WAITING_AT, LinkShape, fence, sleep_on, wake

QUESTION, ANSWER, CONTROL, HANDSHAKE = 1, 2, 3, 4
HEAD = struct.Struct("<4I")  # kind, number, layer or status, rows

KIND = struct.Struct("<I")
CONTROL_BYTES = 1 << 16  # of the control socket in one record: a long prompt does not delay a question for long

FINE = 0
WORST_STATUS = 3
LAST_NUMBER = 0xFFFFFFF0
SECONDS_BETWEEN_LOOKS = 0.05


def longest_record(shape: LinkShape) -> int:
    row = max(ASK_BYTES + shape.query_bytes, shape.part_bytes)
    return max(HEAD.size + shape.capacity * row, KIND.size + CONTROL_BYTES)


def kind_of(record: memoryview) -> int:
    if len(record) < KIND.size:
        raise ProtocolError("A record on a link is too short.")
    kind: int = KIND.unpack_from(record)[0]
    return kind


def after(number: int) -> int:
    return 1 if number >= LAST_NUMBER else number + 1


class _LinkEnd:
    def __init__(self, shape: LinkShape, question: int, answer: int, *, asks: bool) -> None:
        self._shape = shape
        self._question, self._answer = shape.map(question, answer, asks=asks)
        self._questions, self._answers = self._question.view(), self._answer.view()
        self._number, self._layer, self._rows = (self._question.word(NUMBER_AT + at) for at in (0, 4, 8))
        self._answered, self._status, self._answered_rows = (self._answer.word(NUMBER_AT + at) for at in (0, 4, 8))
        self._queries_at = ROWS_AT + shape.capacity * ASK_BYTES
        self._query_bytes, self._part_bytes = shape.query_bytes, shape.part_bytes
        self._last = self._number.value
        (self._question if asks else self._answer).word(WAITING_AT).value = 1

    def _may_be_asked(self, number: int, layer: int, rows: int) -> bool:
        return number == after(self._last) and layer < self._shape.layers and 1 <= rows <= self._shape.capacity


class VaultEnd(_LinkEnd):
    def __init__(self, shape: LinkShape, question: int, answer: int) -> None:
        super().__init__(shape, question, answer, asks=False)
        self._open: tuple[int, int] | None = None

    def next_question(self) -> tuple[bytes, memoryview, memoryview] | None:
        """A question's head, rows and queries; None when the link was closed."""
        while (number := self._number.value) == self._last:
            sleep_on(self._question, number)
        if number == CLOSED:
            return None
        fence()
        layer, rows = self._layer.value, self._rows.value
        if not self._may_be_asked(number, layer, rows):
            raise ProtocolError("The service asked what it must not.")
        self._last, self._open = number, (number, rows)
        return (
            HEAD.pack(QUESTION, number, layer, rows),
            self._questions[ROWS_AT : ROWS_AT + rows * ASK_BYTES],
            self._questions[self._queries_at : self._queries_at + rows * self._query_bytes],
        )

    def leave_answer(self, record: memoryview) -> None:
        """An answer must be to the open question and of its size, or a refusal."""
        number, status, rows, parts = _numbers_of(record)
        asked, self._open = self._open, None
        fine = status == FINE and asked == (number, rows) and len(parts) == rows * self._part_bytes
        refusal = 0 < status <= WORST_STATUS and asked is not None and asked[0] == number and not rows and not parts
        if not fine and not refusal:
            raise ProtocolError("An answer came that fits no question.")
        self._answers[ROWS_AT : ROWS_AT + len(parts)] = parts
        self._status.value, self._answered_rows.value = status, rows
        fence()
        self._answered.value = number
        wake(self._answer)


class ServiceEnd(_LinkEnd):
    def __init__(self, shape: LinkShape, question: int, answer: int) -> None:
        super().__init__(shape, question, answer, asks=True)

    def ask(self, record: memoryview, give_up: Callable[[], bool]) -> tuple[bytes, memoryview] | None:
        """The answer's head and parts. None if the link was closed, or if `give_up` while the vault is silent."""
        number, layer, rows, rest = _numbers_of(record)
        split = rows * ASK_BYTES
        if not self._may_be_asked(number, layer, rows) or len(rest) != split + rows * self._query_bytes:
            raise ProtocolError("A question came that must not be asked.")
        self._questions[ROWS_AT : ROWS_AT + split] = rest[:split]
        self._questions[self._queries_at : self._queries_at + rows * self._query_bytes] = rest[split:]
        self._layer.value, self._rows.value = layer, rows
        before, self._last = self._answered.value, number
        fence()
        self._number.value = number
        wake(self._question)
        while (answered := self._answered.value) != number:
            if answered == CLOSED:
                return None
            if answered != before:
                raise ProtocolError("The vault answered what was not asked.")
            sleep_on(self._answer, answered, SECONDS_BETWEEN_LOOKS)
            if self._answered.value == answered and give_up():
                return None
        fence()
        status, answered_rows = self._status.value, self._answered_rows.value
        if 0 < status <= WORST_STATUS:
            return HEAD.pack(ANSWER, number, status, 0), self._answers[:0]
        if status != FINE or answered_rows != rows:
            raise ProtocolError("The vault's answer is not of the question's size.")
        return HEAD.pack(ANSWER, number, status, rows), self._answers[ROWS_AT : ROWS_AT + rows * self._part_bytes]


def _numbers_of(record: memoryview) -> tuple[int, int, int, memoryview]:
    if len(record) < HEAD.size:
        raise ProtocolError("A record on a link is too short.")
    _, number, second, rows = HEAD.unpack_from(record)
    return number, second, rows, record[HEAD.size :]
