"""Numbers of requests: a frontend counts its own; elsewhere they carry the frontend's number too, in the bits above."""

from __future__ import annotations

from cloister.errors import ProtocolError

FRONTEND_BITS = 40
_LOCAL = (1 << FRONTEND_BITS) - 1


def wide(frontend: int, request_id: int) -> int:
    """The house's number for a frontend's request."""
    if request_id > _LOCAL:
        raise ProtocolError("A frontend's request id is too large.")
    return frontend << FRONTEND_BITS | request_id


def local(request_id: int) -> int:
    """The frontend's own number."""
    return request_id & _LOCAL


def frontend_of(request_id: int) -> int:
    """Which frontend it came from."""
    return request_id >> FRONTEND_BITS
