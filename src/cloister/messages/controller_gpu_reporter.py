"""Between the controller and the GPU reporter, which asks NVIDIA's driver for reports."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.generation import Failed
from cloister.messages.lifecycle import StartFailed
from cloister.messages.types import Digest, Message, RequestMessage

MAX_GPU_EVIDENCE_BYTES = 262144


class GpusFound(Message, frozen=True):
    """Reporter → controller, once: the number of GPUs here, all in confidential mode. StartFailed if there are none."""

    count: Annotated[int, Meta(ge=1, le=64)]


class AskGpus(RequestMessage, frozen=True):
    """Controller → reporter: a report of every GPU over these bytes. The reply is GpusShown or Failed."""

    nonce: Digest


class GpusShown(RequestMessage, frozen=True):
    """Reporter → controller."""

    reports: Annotated[bytes, Meta(min_length=1, max_length=MAX_GPU_EVIDENCE_BYTES)]


FromGpuReporter = StartFailed | GpusFound | GpusShown | Failed
