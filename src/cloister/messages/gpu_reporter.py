"""Between the controller and the GPU reporter, which asks NVIDIA's driver for reports."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.generation import Failed, OfRequest
from cloister.messages.lifecycle import StartFailed

MAX_GPU_EVIDENCE_BYTES = 262144


class FindGpus(Struct, frozen=True, tag="find_gpus", forbid_unknown_fields=True):
    """Controller → reporter, first. GpusFound or StartFailed comes of it."""

    version: int


class GpusFound(Struct, frozen=True, tag="gpus_found", forbid_unknown_fields=True):
    """Reporter → controller, once: the number of GPUs here, all in confidential mode."""

    count: Annotated[int, Meta(ge=1, le=64)]


class AskGpus(OfRequest, frozen=True, tag="ask_gpus"):
    """Controller → reporter: a report of every GPU over these bytes. GpusShown or Failed comes of it."""

    nonce: Annotated[bytes, Meta(min_length=32, max_length=32)]


class GpusShown(OfRequest, frozen=True, tag="gpus_shown"):
    """Reporter → controller."""

    reports: Annotated[bytes, Meta(min_length=1, max_length=MAX_GPU_EVIDENCE_BYTES)]


ToGpuReporter = FindGpus | AskGpus
FromGpuReporter = StartFailed | GpusFound | GpusShown | Failed
