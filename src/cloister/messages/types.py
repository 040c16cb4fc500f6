"""Words that several wires share: the base of all messages, bounded numbers and names, and how to generate tokens."""

from secrets import randbits
from typing import Annotated, Literal, Self

from msgspec import Meta, Struct, field
from msgspec.structs import replace

VERSION = 6
MAX_SEQUENCES = 256
MAX_EXTRA_ANSWERS = 127
MAX_OPENING = 8192
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
PromptTokens = Annotated[tuple[TokenId, ...], Meta(max_length=1_048_576)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Settings = Annotated[bytes, Meta(max_length=65536)]  # a process's, as their own JSON
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
RequestId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
SequenceNumber = Annotated[int, Meta(ge=0, lt=MAX_SEQUENCES)]
Salt = Annotated[str, Meta(max_length=256)]
Group = Annotated[str, Meta(max_length=256)]  # of tenants that trust each other; empty: none
# How the model's own chat template begins a prompt; no user wrote them.
Openings = Annotated[tuple[Annotated[str, Meta(max_length=MAX_OPENING)], ...], Meta(max_length=16)]
FinishReason = Literal["stop", "length", "content_filter", "cancelled"]
Revealed = Literal["token", "logits"]
MAX_WIDTH = 65536
Vector = Annotated[bytes, Meta(max_length=4 * MAX_WIDTH)]  # float32, little-endian; empty: none
Phase = Literal["query", "key_value", "output_attention", "waiting", "merge", "rest", "step"]


class SilentRepr:
    """Shows a type's name alone: a traceback or a log may print any object."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Message(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The base of all messages. On the wire a message carries its class's name."""


class RequestMessage(Message, frozen=True):
    """A message about one request. Its repr shows the request's number alone."""

    request_id: RequestId

    def __repr__(self) -> str:
        return f"{type(self).__name__}(request_id={self.request_id})"


class SamplingParams(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """temperature 0 is greedy; top_k 0 and top_p 1 are off. No token of `stop_tokens` comes before `min_tokens` others.
    Token t's draw depends on `seed` and t alone; None is drawn
    by the process that reads the prompt. `logprobs`: alternatives beside the chosen token (0: it only). `mpc_reveal`:
    what is opened to the prompt's holder. `stop_recitation`: see vault.recitation. `embed`: no token is wanted, but the
    prompt's vector. `grammar`: the form that the answer follows (grammar.constraint), only where tokens are chosen by a
    process that may see it."""

    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 16
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    seed: Seed | None = 0
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logit_bias: Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] = field(
        default_factory=dict
    )
    stop_tokens: Annotated[tuple[TokenId, ...], Meta(max_length=256)] = ()
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    mpc_reveal: Revealed = "token"
    stop_recitation: bool = False
    embed: bool = False
    grammar: Annotated[str, Meta(max_length=65536)] = ""

    def seeded(self, seed: int | None) -> Self:
        """Drawn here, if the request named none."""
        return replace(self, seed=randbits(63) if seed is None else seed)

    @property
    def known_seed(self) -> int:
        """Who samples must not make one up: another process computes the same tokens."""
        if self.seed is None:
            raise ValueError("the request has no seed")
        return self.seed

    @property
    def requested(self) -> set[str]:
        used = {
            "max_tokens": self.max_tokens == 0 and not self.embed,
            "input": self.embed,
            "top_p": self.top_p < 1,
            "top_k": self.top_k > 0,
            "min_p": self.min_p > 0,
            "repetition_penalty": self.repetition_penalty != 1,
            "min_tokens": self.min_tokens > 0,
            "logprobs": self.logprobs is not None,
            "prompt_logprobs": self.prompt_logprobs is not None,
            "mpc_reveal": self.mpc_reveal != "token",
            "stop_recitation": self.stop_recitation,
        }
        return {name for name, requested in used.items() if requested}


class ExtraAnswer(Struct, frozen=True, array_like=True):
    """One more answer to the same prompt: a request that differs from the first in its number and its seed."""

    request_id: RequestId
    seed: Seed | None


ExtraAnswers = Annotated[tuple[ExtraAnswer, ...], Meta(max_length=MAX_EXTRA_ANSWERS)]


class Partition(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose private span is in a vault. `first`: the vault's token. `origin`, `rotation`: compute.layout.Layout."""

    link: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    slot: Annotated[int, Meta(ge=0, le=1023)]
    first: TokenId
    origin: Annotated[int, Meta(ge=0)] = 0
    rotation: Annotated[int, Meta(ge=0)] = 0


class TokenLogprob(Struct, frozen=True, array_like=True):
    """One token's log-probability and its best alternatives (token, logprob), best first."""

    logprob: float
    top: tuple[tuple[TokenId, float], ...] = ()
