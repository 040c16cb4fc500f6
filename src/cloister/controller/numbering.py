"""Numbers of requests: a front counts its own; in the house they also carry the front's number, in the bits above."""

from __future__ import annotations

from cloister.errors import ProtocolError

FRONT_BITS = 40
_LOCAL = (1 << FRONT_BITS) - 1


def wide(front: int, request_id: int) -> int:
    """The house's number for a front's request."""
    if request_id > _LOCAL:
        raise ProtocolError("A front's request id is too large.")
    return front << FRONT_BITS | request_id


def local(request_id: int) -> int:
    """The front's own number."""
    return request_id & _LOCAL


def front_of(request_id: int) -> int:
    """Which front it came from."""
    return request_id >> FRONT_BITS
