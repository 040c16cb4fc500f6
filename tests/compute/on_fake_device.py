"""Run as a process of its own: service and vault serve one partitioned request on the fake device.

`main` prints tokens and logprobs of both ways, open and partitioned, as JSON, and how often the vault was asked.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any

import torch

from cloister.compute.base import Device
from cloister.compute.reference import ReferenceDevice, ReferenceKernels
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.messages.controller_service import AttachLink, FromSealedService, GeneratePartitioned
from cloister.messages.controller_vault import AssignPrompt, LeaseCores, Prefilled
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Failed, Tokens
from cloister.messages.prompts import TokenPrompt, write_prompt
from cloister.messages.types import Partition, SamplingParams
from cloister.models.decoder import RawParts
from cloister.models.fused import FusedDecoder
from cloister.prompts.reading import PromptReading
from cloister.service.prepare import prepare as prepare_service
from cloister.tools.families import Parsing
from cloister.vault import process as vault
from tests.compute.fake_device import FakeDevice
from tests.models.small_llama import llama_config, llama_weights

SETTINGS = EngineSettings(dtype="fp32", threads=1, kv_cache_mib=2, vault_kv_mib=2, chunk_tokens=16)
PROMPT = tuple(range(3, 40))
PARAMS = SamplingParams(max_tokens=6, temperature=0.0, logprobs=1)
VOCABULARY = 97


def decoder_on(device: Device) -> FusedDecoder:
    config = llama_config(VOCABULARY, hidden=64, heads=4, kv_heads=2)
    return FusedDecoder(config, RawParts(llama_weights(config), device.kernels), device, 256)


class Numbers:
    """A tokenizer nobody asks for text."""

    vocabulary = VOCABULARY
    parsing = Parsing()

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


def said_by(messages: list[Any]) -> list[tuple[int, float]]:
    """Tokens and their logprobs."""
    failed = [message.message for message in messages if isinstance(message, Failed)]
    assert not failed, failed
    tokens = [message for message in messages if isinstance(message, Tokens)]
    return [(t, lp.logprob) for m in tokens for t, lp in zip(m.tokens, m.logprobs or (), strict=True)]


def opened() -> list[tuple[int, float]]:
    decoder = decoder_on(ReferenceDevice(ReferenceKernels(torch.float32)))
    engine = PagedEngine(ModelRunner(decoder, reserve_cache(decoder, SETTINGS.kv_cache_mib)), SETTINGS)
    engine.submit(EngineRequest(1, "t", PROMPT, PARAMS))
    messages: list[Any] = []
    while engine.has_work:
        messages += engine.step()
    return said_by(messages)


def first_token(question: int, answer: int, device: FakeDevice) -> Prefilled:
    decoder = decoder_on(device)
    reading = PromptReading(Numbers(), VOCABULARY, decoder.max_context)  # type: ignore[arg-type]
    made = vault.prepare(decoder, reading, SETTINGS, question, answer)
    made.start()
    said = made.handle([AssignPrompt(1, "partitioned", write_prompt(TokenPrompt(PROMPT)), PARAMS)])
    while not any(isinstance(message, Prefilled | Failed) for message in said):
        said = made.handle([LeaseCores(1)])
    [first] = [message for message in said if isinstance(message, Prefilled)]
    return first


def partitioned(device: FakeDevice) -> list[tuple[int, float]]:
    question_out, question_in = os.pipe()
    answer_out, answer_in = os.pipe()
    prefilled = first_token(question_out, answer_in, device)
    [first] = prefilled.sequences
    assert not prefilled.public and first.logprob is not None
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    made = prepare_service(decoder_on(device), SETTINGS)
    threading.Thread(target=made.run, args=(theirs,), daemon=True).start()
    partition = Partition(7, first.slot, first.token, first.origin, first.rotation)
    request = GeneratePartitioned(1, "t", (), PARAMS, partition)
    socket.send_fds(ours, [encode_frame((AttachLink(7), request))], [question_in, answer_out])
    frames: FrameReader[Any] = FrameReader(FromSealedService)
    messages: list[Any] = []
    while not any(isinstance(m, Failed) or (isinstance(m, Tokens) and m.finish is not None) for m in messages):
        messages += frames.feed(ours.recv(1 << 16))
    return [(first.token, first.logprob.logprob), *said_by(messages)]


def main() -> None:
    torch.set_num_threads(1)
    device = FakeDevice()
    found = {"open": opened(), "partitioned": partitioned(device), "questions": device.askers[0].questions}
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # the service's and the device's threads wait for ever, which libraries mind at an orderly end
