"""The two ends of a shared-memory link as a bridge plays them: the vault's near the service, the service's far away.

Both follow link.h: each keeps its own count of questions, and copies what it was sent before it believes a number in
it. They always say that they sleep, so that the other side always wakes them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from cloister.errors import ProtocolError
from cloister.link import futex
from cloister.link.mapping import Mapping
from cloister.link.network.records import (
    ANSWER,
    FINE,
    HEAD,
    QUESTION,
    WORST_STATUS,
    answer_row_bytes,
    open_numbers,
    question_row_bytes,
)
from cloister.link.shape import ASK_BYTES, CLOSED, NUMBER_AT, ROWS_AT, WAITING_AT, LinkShape

LAST_NUMBER = 0xFFFFFFF0
SECONDS_BETWEEN_LOOKS = 0.05
_SECOND_AT, _COUNT_AT = NUMBER_AT + 4, NUMBER_AT + 8


class VaultSide:
    """Plays the vault: takes the service's questions, leaves answers for it."""

    def __init__(self, shape: LinkShape, question: int, answer: int) -> None:
        self._shape = shape
        self._question, self._questions = _mapped(shape, question, shape.question_bytes, writable=False)
        self._answer, self._answers = _mapped(shape, answer, shape.answer_bytes, writable=True)
        self._number = self._question.word(NUMBER_AT)
        self._layer, self._rows = self._question.word(_SECOND_AT), self._question.word(_COUNT_AT)
        self._answered = self._answer.word(NUMBER_AT)
        self._status, self._answered_rows = self._answer.word(_SECOND_AT), self._answer.word(_COUNT_AT)
        self._queries_at = ROWS_AT + shape.capacity * ASK_BYTES
        self._query_bytes, self._part_bytes = question_row_bytes(shape), answer_row_bytes(shape)
        self._taken = self._number.value
        self._open: tuple[int, int] | None = None
        self._answer.word(WAITING_AT).value = 1

    def next_question(self) -> tuple[bytes, memoryview, memoryview] | None:
        """Wait for it: its head, its rows and its queries; None when the link was closed."""
        address = self._question.address + NUMBER_AT
        while (number := self._number.value) == self._taken:
            futex.sleep_on(address, number)
        if number == CLOSED:
            return None
        layer, rows = self._layer.value, self._rows.value
        if number != after(self._taken) or not layer < self._shape.layers or not 1 <= rows <= self._shape.capacity:
            raise ProtocolError("The service asked what it must not.")
        self._taken, self._open = number, (number, rows)
        return (
            HEAD.pack(QUESTION, number, layer, rows),
            self._questions[ROWS_AT : ROWS_AT + rows * ASK_BYTES],
            self._questions[self._queries_at : self._queries_at + rows * self._query_bytes],
        )

    def leave_answer(self, record: memoryview) -> None:
        """An answer came: to the question that is open, of its size, or an honest refusal."""
        number, status, rows, parts = open_numbers(record)
        asked, self._open = self._open, None
        fine = status == FINE and asked == (number, rows) and len(parts) == rows * self._part_bytes
        refusal = 0 < status <= WORST_STATUS and asked is not None and asked[0] == number and not rows and not parts
        if not fine and not refusal:
            raise ProtocolError("An answer came that fits no question.")
        self._answers[ROWS_AT : ROWS_AT + len(parts)] = parts
        self._status.value, self._answered_rows.value = status, rows
        self._answered.value = number
        futex.wake(self._answer.address + NUMBER_AT)


class ServiceSide:
    """Plays the service: puts questions to a vault, takes its answers."""

    def __init__(self, shape: LinkShape, question: int, answer: int) -> None:
        self._shape = shape
        self._question, self._questions = _mapped(shape, question, shape.question_bytes, writable=True)
        self._answer, self._answers = _mapped(shape, answer, shape.answer_bytes, writable=False)
        self._number = self._question.word(NUMBER_AT)
        self._layer, self._rows = self._question.word(_SECOND_AT), self._question.word(_COUNT_AT)
        self._answered = self._answer.word(NUMBER_AT)
        self._status, self._answered_rows = self._answer.word(_SECOND_AT), self._answer.word(_COUNT_AT)
        self._queries_at = ROWS_AT + shape.capacity * ASK_BYTES
        self._query_bytes, self._part_bytes = question_row_bytes(shape), answer_row_bytes(shape)
        self._asked = self._number.value
        self._question.word(WAITING_AT).value = 1

    def ask(self, record: memoryview, give_up: Callable[[], bool]) -> tuple[bytes, memoryview] | None:
        """Put the question and wait: the answer's head and its parts. None if the link was closed, or if while the
        vault is silent `give_up` says so."""
        number, layer, rows, rest = open_numbers(record)
        split = rows * ASK_BYTES
        if (
            number != after(self._asked)
            or not layer < self._shape.layers
            or not 1 <= rows <= self._shape.capacity
            or len(rest) != split + rows * self._query_bytes
        ):
            raise ProtocolError("A question came that must not be asked.")
        self._questions[ROWS_AT : ROWS_AT + split] = rest[:split]
        self._questions[self._queries_at : self._queries_at + rows * self._query_bytes] = rest[split:]
        self._layer.value, self._rows.value = layer, rows
        before, self._asked = self._answered.value, number
        self._number.value = number
        futex.wake(self._question.address + NUMBER_AT)
        address = self._answer.address + NUMBER_AT
        while (answered := self._answered.value) != number:
            if answered == CLOSED:
                return None
            if answered != before:
                raise ProtocolError("The vault answered what was not asked.")
            futex.sleep_on(address, answered, SECONDS_BETWEEN_LOOKS)
            if self._answered.value == answered and give_up():
                return None
        status, answered_rows = self._status.value, self._answered_rows.value
        if 0 < status <= WORST_STATUS:
            return HEAD.pack(ANSWER, number, status, 0), self._answers[:0]
        if status != FINE or answered_rows != rows:
            raise ProtocolError("The vault's answer is not of the question's size.")
        return HEAD.pack(ANSWER, number, status, rows), self._answers[ROWS_AT : ROWS_AT + rows * self._part_bytes]


def after(number: int) -> int:
    """The number of the next question (link.h)."""
    return 1 if number >= LAST_NUMBER else number + 1


def _mapped(shape: LinkShape, descriptor: int, size: int, *, writable: bool) -> tuple[Mapping, memoryview]:
    mapping = Mapping(descriptor, size, writable=writable)
    shape.check(mapping.read(0, NUMBER_AT))
    whole = (ctypes.c_char * size).from_address(mapping.address)
    return mapping, memoryview(whole).cast("B")
