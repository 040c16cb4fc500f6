"""Each child's life: its own namespaces, its role, its seal, then it speaks. Threads start before `seal`, users' data
after. A service's failure before that is reported; a vault just ends."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch

from cloister.attention import process as attention
from cloister.compute.base import Device
from cloister.compute.choose import choose_device
from cloister.config import EngineSettings
from cloister.detection.known_prefixes import prefixes_of
from cloister.detection.redaction import preload_redaction
from cloister.grammar.compiled import learn
from cloister.link.memory import links
from cloister.messages.controller_forkserver import Preload, Spawn
from cloister.messages.frames import encode_frame
from cloister.messages.lifecycle import start_failed
from cloister.models.decoder import Decoder
from cloister.models.load import load_decoder
from cloister.models.sealed import SealedParts
from cloister.models.source import ModelFolder, open_folder
from cloister.obfuscation.candidates import vocabularies
from cloister.placement import Role
from cloister.process.hardening import name_process
from cloister.process.sandbox.layers import Layer, Profile
from cloister.process.sandbox.namespaces import enter_own
from cloister.process.sandbox.resources import open_descriptors, use_null
from cloister.process.sandbox.seal import seal
from cloister.prompts.reading import PromptReading
from cloister.prompts.tokenizer import Tokenizer
from cloister.service.prepare import prepare as prepare_service
from cloister.vault import process as vault

# Control socket, /dev/null, and a vault's link or the mailbox of an attention process.
DESCRIPTORS = {"service": 2, "vault": 4, "attention": 3}
MIB = 1 << 20
VAULT_BEYOND_KV = 64 * MIB
SERVICE_BEYOND_KV = 1024 * MIB  # memory a child may take after the seal; its KV cache is reserved before
_ROW_WORTH = 16  # floats of scratch of a prefilled row, in widths of the hidden state: a generous guess
Speak = Callable[[socket.socket], None]
Made = tuple[Speak, Speak, set[int], int]  # run when sealed, announce before, descriptors to keep, memory to take


def without_layers(device: Device) -> frozenset[Layer]:
    missing = {
        Layer.NO_DEVICES: bool(device.files),
        Layer.GPU_IN_TURNS: device.placement.uses_mps,
        Layer.OWN_ATTENTION: device.placement.attention_processes > 0,
    }
    return frozenset(layer for layer, is_missing in missing.items() if is_missing)


@dataclass(frozen=True)
class PreloadedModel:
    """Made once in the fork server, used by every child."""

    settings: EngineSettings
    decoder: Decoder
    reading: PromptReading
    folder: ModelFolder
    parts: SealedParts
    openings: tuple[str, ...] = ()
    unlinked: vault.Vault | None = None  # without a link and data: a forked child connects its own copy

    @property
    def device(self) -> Device:
        return self.decoder.device

    def share(self, mps_folder: str) -> None:
        """A model whose attention cannot be partitioned takes turns: it has no level that needs MPS."""
        if self.device.can_share(self.decoder):
            self.device.share(mps_folder, self.settings.attention_processes)

    def with_vault(self) -> "PreloadedModel":
        if not self.device.survives_fork:
            return self
        return replace(self, unlinked=vault.prepare(self.decoder, self.reading, self.settings))

    def opened(self, role: Role, weights: int | None) -> "tuple[PreloadedModel, int | None]":
        """The model where the child will compute, and a descriptor of the device's weights for others."""
        self.device.open(role)
        if self.device.survives_fork:
            return self, None
        lent = self.device.hold_weights(self.parts.file, weights)
        decoder = load_decoder(self.folder, self.parts, self.device, self.settings.max_context)
        return replace(self, decoder=decoder), lent

    @property
    def scratch_bytes(self) -> int:
        """Beyond the KV cache, for one chunk, at most."""
        width = self.decoder.heads * self.decoder.cache_shape.dim
        return self.settings.chunk_tokens * _ROW_WORTH * width * 4


def load_model(preload: Preload, weights: int) -> PreloadedModel:
    """Without starting a thread."""
    torch.set_num_threads(1)
    settings = EngineSettings.model_validate_json(preload.settings)
    # One thread is the caller's own. A child starts its team after the fork, which threads would not survive.
    device = choose_device(settings.model_copy(update={"threads": 1}))
    folder = open_folder(Path(preload.path), preload.name)
    parts = SealedParts(weights, device.kernels)
    decoder = load_decoder(folder, parts, device, settings.max_context)
    if settings.private_layers:
        decoder.keep_private(settings.private_layers)
    tokenizer = Tokenizer(folder, settings.tool_parser)
    tokenizer.warm()
    learn(tokenizer)
    preload_redaction()
    vocabularies.load()
    reading = PromptReading(tokenizer, decoder.vocabulary, decoder.max_context)
    return PreloadedModel(settings, decoder, reading, folder, parts, prefixes_of(tokenizer))


def live(spawn: Spawn, model: PreloadedModel, descriptors: list[int], *, allow_degraded: bool) -> NoReturn:
    status = 1
    try:
        _live(spawn, model, descriptors, allow_degraded)
        status = 0
    except BaseException:  # nothing may return into the fork server's code, and nothing is printed
        pass
    finally:
        with suppress(BaseException):
            model.device.finish()
        os._exit(status)


def _live(spawn: Spawn, model: PreloadedModel, descriptors: list[int], allow_degraded: bool) -> None:
    control = socket.socket(fileno=descriptors[0])
    try:
        use_null(descriptors[1])
        name_process(spawn.role, forked=True)
        devices = model.device.files
        before = open_descriptors() if devices else set()
        empty_root = enter_own(devices=devices, meets=model.device.placement.uses_mps)
        if spawn.role == "attention":  # it needs no weights, only to know the model's shape
            model.device.open(spawn.role)
            role, announce, kept, memory = _attention(model, descriptors, spawn.slots)
        else:
            weights = descriptors.pop() if spawn.weights else None
            model, lent = model.opened(spawn.role, weights)
            model.decoder.kernels.start_team(model.settings.threads)
            role, announce, kept, memory = (
                _vault(model, descriptors) if spawn.role == "vault" else _service(model, lent)
            )
        announce(control)
        if devices:
            kept |= open_descriptors() - before
        empty_root()
        kept.add(control.fileno())
        profile = Profile(
            spawn.role,
            kept,
            memory,
            links().upper_word,
            without=without_layers(model.device),
            allow_degraded=allow_degraded,
        )
        seal(profile)
    except Exception as error:
        if spawn.role != "vault":
            with suppress(OSError):
                control.sendall(encode_frame((start_failed(error, f"The {_NAMES[spawn.role]} cannot start"),)))
        raise
    role(control)


_NAMES = {"service": "service", "attention": "attention process"}


def _attention(model: PreloadedModel, descriptors: list[int], slots: int) -> Made:
    made = attention.prepare(model.decoder, model.settings, slots, descriptors[2])
    return made.run, made.announce, made.descriptors, VAULT_BEYOND_KV


def _vault(model: PreloadedModel, descriptors: list[int]) -> Made:
    _, _, question, answer = descriptors
    if (made := model.unlinked) is not None:
        made.connect(question, answer)
    else:
        made = vault.prepare(model.decoder, model.reading, model.settings, question, answer)
    made.start()
    return made.run, lambda _: None, made.descriptors, VAULT_BEYOND_KV + model.scratch_bytes


def _service(model: PreloadedModel, weights: int | None) -> Made:
    model.decoder.kernels.take_short_turns()
    made = prepare_service(model.decoder, model.settings, weights)
    return made.run, made.announce, set(), SERVICE_BEYOND_KV + model.scratch_bytes
