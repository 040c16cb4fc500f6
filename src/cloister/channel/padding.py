"""Sizes in buckets: whoever sees only ciphertext learns which bucket a length falls into, and no more.

A bucket's size doubles up to `FINE_BYTES`; beyond, buckets are that far apart, so that padding never costs a large
message more than it costs a middling one.
"""

from __future__ import annotations

SMALLEST_BYTES = 512
"""An event of a streamed answer with one token in it fits, whatever the token."""
FINE_BYTES = 1 << 20


def padded(length: int) -> int:
    """The size of the bucket that holds `length` bytes."""
    if length <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    if length <= FINE_BYTES:
        return 1 << (length - 1).bit_length()
    return -(-length // FINE_BYTES) * FINE_BYTES
