"""Asks NVIDIA's driver for GPUs' evidence: a driver that hangs or crashes ends this process, not the controller."""

import socket

from cloister.attest.nvidia.nvml import Nvml
from cloister.attest.nvidia.reporter import GpuReporter
from cloister.errors import CloisterError, where_raised
from cloister.messages.controller_gpu_reporter import AskGpus, GpusFound, GpusShown
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import failed, start_failed
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child


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


ROLE = "gpu-reporter"


def main(control: socket.socket) -> None:
    serve(BlockingEndpoint(control, AskGpus))


if __name__ == "__main__":
    main(begin_child(ROLE))
