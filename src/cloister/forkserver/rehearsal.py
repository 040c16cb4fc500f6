"""One small request of each kind before the first fork: a sealed child opens no file, so all must be loaded already."""

import itertools
from collections.abc import Sequence

import msgspec

from cloister.channel.sealing import seal_prompt
from cloister.compute.base import LinkAnswerer
from cloister.engine.rehearsal import IdleRunner
from cloister.engine.runner import ModelRunner, Runner, reserve_cache
from cloister.forkserver.child import PreloadedModel
from cloister.levels import ISOLATED, PARTITIONED, VaultLevel
from cloister.messages.controller_vault import AssignPrompt, FromVault, LeaseCores, Release, ToVault, WantCores
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Cancel, Failed
from cloister.messages.prompts import (
    ChatPrompt,
    LockedPrompt,
    Prompt,
    PromptField,
    PromptMessage,
    TextPrompt,
    TokenPrompt,
    write_prompt,
)
from cloister.messages.types import SamplingParams
from cloister.vault.looks import heads_of
from cloister.vault.process import Vault

PROMPTS: tuple[Prompt, ...] = (
    TokenPrompt((0,)),
    TextPrompt("a <confidential>b</confidential>", public=True),
    ChatPrompt((PromptMessage("user", "a"),)),
    ChatPrompt((PromptMessage("system", "a", True), PromptMessage("user", "a <confidential>b</confidential>", True))),
    TextPrompt("<confidential>", public=True),
    TextPrompt("a", form='{"json_schema":{"type":"object","properties":{"a":{"type":"number"}}}}'),
    TextPrompt("a", form='{"regex":"("}'),
)
COMPUTED, LONGER = PROMPTS[1], PROMPTS[2]  # tokens that the service may see and may not; a chat's template
SEALED: tuple[tuple[PromptField, bytes], ...] = (
    ("messages", b'[{"role": "user", "content": [{"type": "text", "text": "a"}]}]'),
    ("messages", b'[{"role": "a"}]'),
    ("prompt", b'"a"'),
    ("prompt", b"[0]"),
    ("prompt", b"{"),
    ("input", b'"a"'),
)
WAYS = (
    SamplingParams(max_tokens=2, temperature=0.0, presence_penalty=0.5, logit_bias={0: 1.0}),
    SamplingParams(max_tokens=2, top_p=0.9, top_k=3, min_p=0.01, repetition_penalty=1.1),
    SamplingParams(max_tokens=2, logprobs=2),
    SamplingParams(max_tokens=2, temperature=0.0, prompt_logprobs=1),
    SamplingParams(max_tokens=0, embed=True),
)


def rehearse(model: PreloadedModel) -> None:
    """On a runner that computes nothing, then a few on the model, if it can be rehearsed before a fork."""
    idle, here = IdleRunner(model.decoder), model.device.survives_fork
    if here:
        idle.draw_rows, idle.mask_row = model.decoder.kernels.draw_rows, model.decoder.kernels.mask_row
    _play_all(model, idle, [(prompt, params) for prompt in PROMPTS for params in WAYS])
    if not here:
        return
    runner = ModelRunner(model.decoder, reserve_cache(model.decoder, model.settings.vault_kv_mib))
    if model.settings.watch_attention:
        heads_of(model.decoder, model.reading)
    _play_all(model, runner, [*[(COMPUTED, params) for params in WAYS], (LONGER, WAYS[0])])


def _play_all(model: PreloadedModel, runner: Runner, plays: Sequence[tuple[Prompt, SamplingParams]]) -> None:
    """Through a vault whose link is not used; on a runner that computes nothing, sealed prompts too."""
    answerer = LinkAnswerer(slots=1)
    vault = Vault(model.decoder, model.reading, model.settings, runner, answerer)
    levels: tuple[VaultLevel, ...] = (PARTITIONED, ISOLATED)
    numbers = itertools.count(1)
    for level in levels:
        for prompt, params in plays:
            _play(vault, AssignPrompt(next(numbers), level, write_prompt(prompt), params))
        for field, written in SEALED if isinstance(runner, IdleRunner) else ():
            for key in (bytearray(32), bytearray(b"?" * 32)):  # the second does not open it
                _play(vault, AssignPrompt(next(numbers), level, _locked(field, written, key), WAYS[0]))
    answerer.close()


def _locked(field: PromptField, written: bytes, key: bytearray) -> LockedPrompt:
    enc = bytes(32)
    return LockedPrompt(seal_prompt(bytes(32), enc, 0, written), key, enc, 0, field)


def _play(vault: Vault, assign: AssignPrompt) -> None:
    replies = _over_the_wire(vault, assign)
    while any(isinstance(reply, WantCores) for reply in replies):
        replies = _over_the_wire(vault, LeaseCores(1))
    _over_the_wire(vault, Release(assign.request_id))
    _over_the_wire(vault, Cancel(assign.request_id))


def _over_the_wire(vault: Vault, message: ToVault) -> list[msgspec.Struct]:
    """Message and replies are encoded and decoded, as they will be."""
    to_vault: FrameReader[ToVault] = FrameReader(ToVault)
    from_vault: FrameReader[msgspec.Struct] = FrameReader(FromVault)
    replies = vault.handle(to_vault.feed(encode_frame((message,))))
    if any(isinstance(reply, Failed) and reply.code == "internal_error" for reply in replies):
        raise RuntimeError("the rehearsal failed")
    return from_vault.feed(encode_frame(tuple(replies)))
