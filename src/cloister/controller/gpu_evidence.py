"""The handle on the GPU reporter. A node that must show GPUs, or began confidential, gives no evidence without."""

import asyncio
import itertools
import logging
import os

import msgspec

from cloister.attest.evidence import GpuEvidence
from cloister.config import GpuEvidenceChoice
from cloister.errors import GpuNotConfidential, NoGpu, ProtocolError, QueueFull, ServiceUnavailable, SetupError
from cloister.messages.controller_gpu_reporter import AskGpus, FromGpuReporter, GpusFound, GpusShown
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import raised
from cloister.process.handle import ModuleHandle

log = logging.getLogger(__name__)
REPORTER = "cloister.controller.gpu_reporter"
DEVICE = "/dev/nvidiactl"
START_S, ANSWER_S = 60.0, 20.0  # NVIDIA's driver may have to wake the GPUs first
MAX_WAITING = 32


class GpuEvidenceKeeper:
    """`count`: GPUs that this node shows, none before `start`."""

    def __init__(self, choice: GpuEvidenceChoice, *, start_s: float = START_S, answer_s: float = ANSWER_S) -> None:
        self._choice, self._start_s, self._answer_s = choice, start_s, answer_s
        self._numbers = itertools.count(1)
        self._reporter: ModuleHandle[GpusFound] | None = None
        self._asked: tuple[int, asyncio.Future[bytes]] | None = None
        self._one_by_one = asyncio.Lock()
        self._waiting = 0
        self.count = 0

    async def start(self) -> None:
        if self._choice == "none" or (self._choice == "auto" and not os.path.exists(DEVICE)):
            return
        try:
            found = await self._begin()
        except (NoGpu, GpuNotConfidential) as reason:
            if self._choice == "nvml":
                raise
            log.warning("Evidence shows no GPU. %s", reason)
        else:
            self.count = found.count

    async def show(self, nonce: bytes) -> GpuEvidence | None:
        """Of all GPUs over these 32 bytes, None if none is shown; an error if one does not answer."""
        if not self.count:
            return None
        if self._waiting >= MAX_WAITING:
            raise QueueFull("Too many clients ask for the GPUs' evidence.", retry_after=5)
        self._waiting += 1
        try:
            async with self._one_by_one:
                return GpuEvidence("report", await self._ask(nonce))
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        if self._reporter is not None:
            reporter, self._reporter = self._reporter, None
            await reporter.close()

    async def _begin(self) -> GpusFound:
        self._reporter = ModuleHandle(
            "GPU reporter", REPORTER, FromGpuReporter, GpusFound, handle=self._receive, on_end=self._ended
        )
        try:
            async with asyncio.timeout(self._start_s):
                return await asyncio.shield(self._reporter.ready)
        except BaseException as wrong:
            await self.close()
            if not isinstance(wrong, TimeoutError):
                raise
            raise SetupError("NVIDIA's driver does not answer.", hint="`nvidia-smi` shows whether it does.") from None

    async def _ask(self, nonce: bytes) -> bytes:
        if self._reporter is None and (found := await self._begin()).count != self.count:
            await self.close()
            raise SetupError(f"This node showed {self.count} GPUs when it started, and now has {found.count}.")
        assert self._reporter is not None
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked = (number := next(self._numbers)), answer
        self._reporter.send(AskGpus(number, nonce))
        try:
            async with asyncio.timeout(self._answer_s):
                return await answer
        except TimeoutError:
            await self.close()
            raise ServiceUnavailable("The GPUs did not report in time.", hint="Try again.") from None
        except asyncio.CancelledError:
            await self.close()  # its answer would come to the next question
            raise
        finally:
            self._asked = None

    def _receive(self, message: msgspec.Struct) -> None:
        match message, self._asked:
            case GpusShown(), (number, answer) if message.request_id == number and not answer.done():
                answer.set_result(message.reports)
            case Failed(), (number, answer) if message.request_id == number and not answer.done():
                answer.set_exception(raised(message))
            case _:
                raise ProtocolError("The GPU reporter sent a message out of turn.")

    def _ended(self) -> None:
        if self._reporter is not None:
            self._reporter.kill()
            self._reporter = None
        if self._asked is not None and not self._asked[1].done():
            self._asked[1].set_exception(ServiceUnavailable("The GPU reporter ended.", hint="Try again."))
