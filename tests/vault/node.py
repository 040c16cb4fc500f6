"""What the vault's tests share: small decoders, a tokenizer of bytes, a fake answerer, and a talk with a vault."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from msgspec import structs

from cloister.compute.base import KVCache, LinkAnswerer, LinkAsker
from cloister.compute.choose import choose_device
from cloister.compute.layout import Batch
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.levels import VaultLevel
from cloister.messages.controller_vault import AssignPrompt, CoresDone, LeaseCores, Prefilled, Release, WantCores
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.messages.prompts import LockedPrompt, ObfuscationParams, Prompt, TextPrompt, write_prompt
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister.models.decoder import Decoder, RawParts
from cloister.models.fused import FusedDecoder
from cloister.prompts.reading import PromptReading
from cloister.tools.families import Parsing
from cloister.vault.process import Vault
from tests.models.architectures import CONFIGS, VOCABULARY, random_model

SETTINGS = EngineSettings(dtype="fp32", threads=1, kv_cache_mib=2, vault_kv_mib=2, chunk_tokens=32)


def small_decoder(name: str, settings: EngineSettings = SETTINGS) -> Decoder:
    device = choose_device(settings)
    config = CONFIGS[name]
    return FusedDecoder(config, RawParts(dict(random_model(config).state_dict()), device.kernels), device, 512)


class CountingDecoder(Decoder):
    """Counts the rows it computes; `fail_next` is raised instead of computing once."""

    def __init__(self, inner: Decoder) -> None:
        self.__dict__.update(inner.__dict__)
        self.relative = inner.relative
        self._inner = inner
        self.rows = 0
        self.fail_next: Exception | None = None

    def hidden(self, batch: Batch, cache: KVCache, asker: LinkAsker | None = None) -> torch.Tensor:
        if (error := self.fail_next) is not None:
            self.fail_next = None
            raise error
        self.rows += batch.rows
        return self._inner.hidden(batch, cache, asker)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._inner.logits(hidden)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._inner.normed(hidden)


class ByteTokenizer:
    """One token a byte; a chat is its messages' contents, one after the other."""

    vocabulary = VOCABULARY

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    special = ()
    parsing = Parsing()

    def decode(self, tokens: Any) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def render_chat(self, messages: list[dict[str, Any]], words: Any = None) -> list[int]:
        said = [token for message in messages for token in self.encode(self._turn(message))]
        return [*(self.encode(json.dumps(words)) if words else ()), *said]

    @staticmethod
    def _turn(message: dict[str, Any]) -> str:
        more = {name: value for name, value in message.items() if name not in ("role", "content")}
        return str(message["content"]) + (json.dumps(more) if more else "")

    def render_chat_beside(
        self, messages: list[dict[str, Any]], twin: list[dict[str, Any]], words: Any = None
    ) -> tuple[list[int], list[int]]:
        mine, other = self.render_chat(messages, words), self.render_chat(twin)
        same = next(
            (i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(map(len, (mine, other)))
        )
        return mine, mine[:same]


@dataclass
class Exposed:
    blocks: tuple[int, ...]
    start: int
    end: int
    rotation: int


class FakeAnswerer(LinkAnswerer):
    """Notes what is exposed; nobody asks it anything."""

    def __init__(self, slots: int = 1024) -> None:
        self.slots = slots
        self.exposed: dict[int, Exposed] = {}
        self.code, self.left = "", False
        self._ended, self._end = os.pipe()

    def start(self) -> None:
        return None

    def free_slot(self) -> int | None:
        return next((slot for slot in range(self.slots) if slot not in self.exposed), None)

    def expose(self, slot: int, blocks: Any, *, start: int, end: int, rotation: int) -> None:
        assert slot not in self.exposed and 0 <= slot < self.slots
        self.exposed[slot] = Exposed(tuple(blocks), start, end, rotation)

    def withdraw(self, slot: int) -> None:
        del self.exposed[slot]

    def fileno(self) -> int:
        return self._ended

    @property
    def verdict(self) -> str:
        return self.code

    def leave(self) -> None:
        self.left = True

    def break_with(self, code: str) -> None:
        self.code = code
        os.write(self._end, b"!")

    def close(self) -> None:
        os.close(self._ended)
        os.close(self._end)


class Room:
    """A vault and a controller who gives it the cores whenever it asks."""

    def __init__(
        self, decoder: Decoder, settings: EngineSettings = SETTINGS, answerer: FakeAnswerer | None = None
    ) -> None:
        self.answerer = answerer or FakeAnswerer()
        self.decoder = CountingDecoder(decoder)
        self.runner = ModelRunner(self.decoder, reserve_cache(self.decoder, settings.vault_kv_mib))
        reading = PromptReading(ByteTokenizer(), decoder.vocabulary, decoder.max_context)
        self.vault = Vault(self.decoder, reading, settings, self.runner, self.answerer)
        self.memory = self.vault.memory
        self.pool = self.memory.pool
        self.said: list[Any] = []

    def confide(
        self,
        number: int,
        prompt: Prompt | LockedPrompt | str | bytes,
        level: VaultLevel = "partitioned",
        obfuscation: ObfuscationParams | None = None,
        **params: Any,
    ) -> Any:
        """Hand in a prompt; the vault's first word about it."""
        if isinstance(prompt, str):
            prompt = TextPrompt(prompt)
        data = prompt if isinstance(prompt, bytes | LockedPrompt) else write_prompt(prompt)
        params = {"temperature": 0.0, "max_tokens": 8, **params}
        return self.say(AssignPrompt(number, level, data, SamplingParams(**params), obfuscation=obfuscation))[0]

    def say(self, message: Any) -> list[Any]:
        replies = self.vault.handle([message])
        self.said += replies
        return replies

    @property
    def wants_cores(self) -> bool:
        said = [m for m in self.said if isinstance(m, WantCores | CoresDone)]
        return bool(said) and isinstance(said[-1], WantCores)

    def serve(self) -> None:
        """Give the cores until it is not wanted any more."""
        while self.wants_cores:
            self.say(LeaseCores(1))

    def first(self, number: int) -> SimpleNamespace:
        """All that was said when a prompt of one sequence was prefilled."""
        [found] = [m for m in self.said if isinstance(m, Prefilled) and m.request_id == number]
        [sequence] = found.sequences
        return SimpleNamespace(**structs.asdict(sequence), max_tokens=found.max_tokens, public=found.public)

    def answer(self, number: int) -> list[int]:
        return [token for m in self.said if isinstance(m, Tokens) and m.request_id == number for token in m.tokens]

    def release(self, number: int) -> None:
        self.say(Release(number))

    def cancel(self, number: int) -> None:
        self.say(Cancel(number))

    def forget(self) -> None:
        """Drop the session's memory."""
        self.memory.make_room(self.pool.total)


def engine_of(decoder: Decoder, settings: EngineSettings) -> PagedEngine:
    return PagedEngine(ModelRunner(decoder, reserve_cache(decoder, settings.kv_cache_mib)), settings)


def engine_answer(
    decoder: Decoder, prompt: tuple[int, ...], public: int = 0, **params: Any
) -> tuple[list[int], list[TokenLogprob]]:
    """What an engine outside any vault says to the same prompt, everything in one chunk."""
    engine = engine_of(decoder, SETTINGS.model_copy(update={"chunk_tokens": 512}))
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **params})
    assert not isinstance(engine.submit(EngineRequest(1, "t", prompt, sampling, public)), Failed)
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    while engine.has_work:
        for message in engine.step():
            assert isinstance(message, Tokens)
            tokens += message.tokens
            logprobs += message.logprobs or ()
    return tokens, logprobs


def kinds(messages: list[msgspec.Struct]) -> list[str]:
    return [type(message).__name__ for message in messages]
