"""What travels between the bridges of a link, and how: floats as the bytes they are, the rest as numbers.

    question | number | layer  | rows | the rows asked for | their queries
    answer   | number | status | rows | the parts of each row and head
    control  | bytes of the control socket
    hail     | what the near side wants (messages.bridge)

A question carries nothing but what the shared-memory link carries; see link.h.
"""

from __future__ import annotations

import struct

from cloister.errors import ProtocolError
from cloister.link.shape import ASK_BYTES, LinkShape

QUESTION, ANSWER, CONTROL, HAIL = 1, 2, 3, 4
HEAD = struct.Struct("<4I")
"""Kind, number, layer or status, rows."""

KIND = struct.Struct("<I")
CONTROL_BYTES = 1 << 16
"""Of the control socket in one record, at most: a long prompt does not hold up a question for long."""

FINE = 0
WORST_STATUS = 3


def question_row_bytes(shape: LinkShape) -> int:
    return 4 * shape.heads * shape.dim


def answer_row_bytes(shape: LinkShape) -> int:
    return 4 * shape.heads * (shape.dim + 2)


def longest_record(shape: LinkShape) -> int:
    """What both sides make their channel for."""
    row = max(ASK_BYTES + question_row_bytes(shape), answer_row_bytes(shape))
    return max(HEAD.size + shape.capacity * row, KIND.size + CONTROL_BYTES)


def kind_of(record: memoryview) -> int:
    if len(record) < KIND.size:
        raise ProtocolError("A record on a link is too short.")
    kind: int = KIND.unpack_from(record)[0]
    return kind


def open_numbers(record: memoryview) -> tuple[int, int, int, memoryview]:
    """Number, layer or status, rows, and what follows."""
    if len(record) < HEAD.size:
        raise ProtocolError("A record on a link is too short.")
    _, number, second, rows = HEAD.unpack_from(record)
    return number, second, rows, record[HEAD.size :]
