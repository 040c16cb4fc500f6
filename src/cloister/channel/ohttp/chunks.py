"""Chunks (draft-ietf-ohai-chunked-ohttp-08 §6): length ‖ seal, the last one under length 0 with the AAD "final"."""

from collections.abc import Callable

from cloister.channel.bhttp import varint
from cloister.channel.ohttp.encapsulation import TAG_BYTES, Chain
from cloister.errors import ChannelBroken

CHUNK_BYTES = 1 << 14  # what every receiver takes
MAX_SEALED_BYTES = (1 << 16) + TAG_BYTES  # what this one takes
_FINAL = b"final"


class ChunkSealer:
    def __init__(self, chain: Chain, begins: bytes) -> None:
        """`begins`: what comes before the first chunk, a request's header or a response's nonce."""
        self._chain: Chain | None = chain
        self._unsent = begins

    def seal(self, data: bytes) -> bytes:
        cuts = range(0, len(data), CHUNK_BYTES)
        return self._out(*(self._chunk(data[cut : cut + CHUNK_BYTES]) for cut in cuts))

    def end(self, data: bytes = b"") -> bytes:
        """The last bytes to send."""
        most = max(0, len(data) - 1) // CHUNK_BYTES * CHUNK_BYTES
        before = self.seal(data[:most])
        last = self._out(b"\0", self._living().seal(data[most:], _FINAL))
        self._chain = None
        return before + last

    def _chunk(self, data: bytes) -> bytes:
        sealed = self._living().seal(data)
        return varint(len(sealed)) + sealed

    def _living(self) -> Chain:
        if self._chain is None:
            raise ChannelBroken("Nothing can be sealed after the last chunk.")
        return self._chain

    def _out(self, *pieces: bytes) -> bytes:
        begins, self._unsent = self._unsent, b""
        return b"".join((begins, *pieces))


class ChunkOpener:
    """`chain` makes the chain of the bytes before the first chunk, of which there are `begins`. An error is final."""

    def __init__(self, chain: Callable[[bytes], Chain], begins: int) -> None:
        self._make, self._begins = chain, begins
        self._chain: Chain | None = None
        self._buffer = bytearray()
        self._in_final = self._dead = False

    def feed(self, data: bytes) -> bytes:
        """The content of the chunks that are whole. The last one is whole when the stream ends."""
        if self._dead:
            raise ChannelBroken("The encapsulated message broke before.")
        self._buffer += data
        try:
            return b"".join(self._open_whole())
        except BaseException:
            self._die()
            raise

    def finish(self) -> bytes:
        """The stream has ended: the last chunk's content, or ChannelBroken if it is not there and whole."""
        dead, chain, last = self._dead, self._chain, bytes(self._buffer)
        in_final = self._in_final
        self._die()
        if dead or chain is None or not in_final:
            raise ChannelBroken("The encapsulated message was cut off before its last chunk.")
        return chain.open(last, _FINAL)

    def _open_whole(self) -> list[bytes]:
        found: list[bytes] = []
        if self._chain is None:
            if len(self._buffer) < self._begins:
                return found
            self._chain = self._make(self._take(0, self._begins))
        while not self._in_final and self._buffer:
            width = 1 << (self._buffer[0] >> 6)
            if len(self._buffer) < width:
                break
            length = int.from_bytes(self._buffer[:width], "big") & (1 << 8 * width - 2) - 1
            if not length:
                self._in_final = True
                self._take(0, width)
            elif not TAG_BYTES < length <= MAX_SEALED_BYTES:
                raise ChannelBroken("A chunk announces a length that cannot be.")
            elif len(self._buffer) < width + length:
                break
            else:
                found.append(self._chain.open(self._take(width, length)))
        if self._in_final and len(self._buffer) > MAX_SEALED_BYTES:
            raise ChannelBroken("The last chunk is too long.")
        return found

    def _take(self, skip: int, size: int) -> bytes:
        taken = bytes(self._buffer[skip : skip + size])
        del self._buffer[: skip + size]
        return taken

    def _die(self) -> None:
        self._dead, self._chain = True, None
        self._buffer.clear()
