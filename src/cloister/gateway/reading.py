"""How much is asked of a socket at once.

asyncio makes room for 256 KiB at every read and gives most of it back. Where memory is overwritten as it is freed
(`cloister.hardening`), that takes longer than all else that happens to a streamed token.
"""

from __future__ import annotations

import asyncio

READ_BYTES = 1 << 15


def read_in_small_pieces(transport: asyncio.BaseTransport) -> None:
    """Ask for less. A transport that reads in another way stays as it is."""
    if hasattr(transport, "max_size"):
        transport.max_size = READ_BYTES
