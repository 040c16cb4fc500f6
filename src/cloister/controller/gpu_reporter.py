"""Asks NVIDIA's driver for GPUs' evidence: a driver that hangs or crashes ends this process, not the controller."""

import base64
import hmac
import socket

import msgspec

from cloister.attest.chain import read_certificates
from cloister.attest.nvidia.nvml import Nvml
from cloister.attest.nvidia.spdm import MAX_BUNDLE_BYTES, read_report
from cloister.errors import CloisterError, EvidenceInvalid, NoGpu, SetupError, where_raised
from cloister.messages.controller_gpu_reporter import AskGpus, GpusFound, GpusShown
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import failed, start_failed
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child

ROLE = "gpu-reporter"
MAX_GPUS = 16


class GpuReporter:
    """`gpus` answer for all GPUs of the machine, also for those that compute nothing: one that is not shown could."""

    def __init__(self, gpus: Nvml) -> None:
        self._gpus = gpus
        self.count = gpus.count()
        if not self.count:
            raise NoGpu("NVIDIA's driver knows no GPU here.")
        if self.count > MAX_GPUS:
            raise SetupError(f"Evidence shows at most {MAX_GPUS} GPUs, and this machine has {self.count}.")
        gpus.check_confidential()

    def show(self, nonce: bytes) -> bytes:
        self._gpus.check_confidential()
        if (count := self._gpus.count()) != self.count:
            raise SetupError(f"This machine had {self.count} GPUs when the node started, and now has {count}.")
        shown = msgspec.json.encode([self._entry(index, nonce) for index in range(count)])
        if len(shown) > MAX_BUNDLE_BYTES:
            raise SetupError(f"The GPUs' evidence has {len(shown)} bytes; {MAX_BUNDLE_BYTES} are read.")
        return shown

    def _entry(self, index: int, nonce: bytes) -> dict[str, str]:
        report, chain = self._gpus.report(index, nonce), self._gpus.chain(index).rstrip(b"\0")
        try:
            answered = read_report(report).nonce
            certificates = read_certificates(chain)
        except EvidenceInvalid as wrong:
            raise SetupError(f"GPU {index} shows what cannot be read: {wrong.message}") from None
        if not hmac.compare_digest(answered, nonce) or not certificates:
            raise SetupError(f"GPU {index} answers another nonce, or has no certificate.")
        return {"evidence": base64.b64encode(report).decode(), "certificate": base64.b64encode(chain).decode()}


def serve(line: BlockingEndpoint[AskGpus]) -> None:
    try:
        reporter = GpuReporter(Nvml())
    except Exception as reason:
        line.send(start_failed(reason, "The GPUs cannot be asked"))
        return
    line.send(GpusFound(reporter.count))
    while (asked := line.next()) is not None:
        line.send(_answer(reporter, asked))


def _answer(reporter: GpuReporter, asked: AskGpus) -> GpusShown | Failed:
    try:
        return GpusShown(asked.request_id, reporter.show(asked.nonce))
    except CloisterError as reason:
        return failed(asked.request_id, reason)
    except Exception as wrong:
        return failed(asked.request_id, CloisterError(f"The GPUs gave no report: {where_raised(wrong)}."))


def main(control: socket.socket) -> None:
    serve(BlockingEndpoint(control, AskGpus))


if __name__ == "__main__":
    main(begin_child(ROLE))
