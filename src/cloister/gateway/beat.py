"""A stream whose events leave on a beat from the request's arrival, in one size: moments and sizes tell how long the
answer took and no more (McDonald and Bar Or, "Whisper Leak", 2025)."""

import asyncio

EVENT_BYTES = 1024  # what an answer makes in a beat fits, unless it has log-probabilities
_COMMENT = b": \n\n"


class Beat:
    """On the loop's clock. 0 s: none, and nothing is padded."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._number = 0
        self._begun = asyncio.get_running_loop().time()

    def __bool__(self) -> bool:
        return self.every_s > 0

    async def wait(self) -> None:
        """Until the next beat; one that was missed is not made up for."""
        passed = asyncio.get_running_loop().time() - self._begun
        self._number = max(self._number, int(passed / self.every_s)) + 1
        await asyncio.sleep(self._number * self.every_s - passed)


def padded(events: bytes) -> bytes:
    """With a comment line that readers of events skip (HTML standard, §9.2.6), up to a multiple of EVENT_BYTES."""
    missing = -(len(events) + len(_COMMENT)) % EVENT_BYTES
    return b"".join((b": ", b"0" * missing, b"\n\n", events))
