"""A prompt as bytes for its reader. A sealed one stays sealed up to the vault; the controller adds the key."""

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.levels import MOST_FAKES
from cloister.messages.types import Digest, RequestId, SilentRepr, TokenId

MAX_SECRETS = 64
MAX_STOPS, MAX_NAMES, MAX_CALLS = 16, 3, 128
INDEX_SECRET_BYTES = 32
Word = Annotated[str, Meta(min_length=1, max_length=512)]


class ObfuscationParams(Struct, frozen=True, forbid_unknown_fields=True):
    """λ, λ_min (0: λ), and how substitutes are found (obfuscation.goal). No secrets."""

    fakes: Annotated[int, Meta(ge=1, le=MOST_FAKES)] = 7
    minimum: Annotated[int, Meta(ge=0, le=MOST_FAKES)] = 0
    method: Literal["exchangeable", "dictionary", "gqs"] = "exchangeable"
    epsilon: Annotated[float, Meta(gt=0, le=100)] = 2.0
    distance: Literal["absolute", "relative"] = "relative"
    candidates: Annotated[int, Meta(ge=1, le=512)] = 128
    temperature: Annotated[float, Meta(gt=0, le=10)] = 1.0
    regularise: bool = False
    auto_redact: bool = False
    compact: bool = False  # keys of all λ+1 prompts are approximated (vault.compact)


class ObfuscationSecrets(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """For the vault alone: the index's key, the user's substitutes (§3.3), texts where no secret may be."""

    index_secret: Annotated[bytes, Meta(min_length=INDEX_SECRET_BYTES, max_length=INDEX_SECRET_BYTES)]
    substitutes: Annotated[
        tuple[Annotated[tuple[Word, ...], Meta(max_length=MAX_SECRETS)], ...], Meta(max_length=MOST_FAKES)
    ] = ()
    stops: Annotated[tuple[str, ...], Meta(max_length=MAX_STOPS)] = ()
    names: Annotated[tuple[str, ...], Meta(max_length=MAX_NAMES)] = ()


MAX_PROMPT_BYTES = 8 * 1024 * 1024
MOST_BESIDE = {"form": 64 * 1024, "tools": 512 * 1024, "template": 16 * 1024}  # characters of what goes with a prompt
FormText = Annotated[str, Meta(max_length=MOST_BESIDE["form"])]
ToolsText = Annotated[str, Meta(max_length=MOST_BESIDE["tools"])]
TemplateText = Annotated[str, Meta(max_length=MOST_BESIDE["template"])]
MAX_SEALED_PROMPT_BYTES = MAX_PROMPT_BYTES + (1 << 20) + 64  # padding and tag on top
RequestKey = Annotated[bytearray, Meta(min_length=32, max_length=32)]  # overwritten in place after its use
Enc = Digest
PromptNumber = Annotated[int, Meta(ge=0, le=127)]
PromptField = Literal["messages", "prompt", "input"]


class PromptCall(SilentRepr, Struct, frozen=True, array_like=True):
    """A call of a tool in an earlier answer. `arguments`: the JSON text of an object."""

    id: Annotated[str, Meta(max_length=256)]
    name: Annotated[str, Meta(max_length=64)]
    arguments: str


class PromptMessage(SilentRepr, Struct, frozen=True, array_like=True):
    """`public`: the service may have it, except what is tagged in it as confidential. `call_id`: of a tool's result."""

    role: Annotated[str, Meta(max_length=64)]
    content: str
    public: bool = False
    calls: Annotated[tuple[PromptCall, ...], Meta(max_length=MAX_CALLS)] = ()
    call_id: Annotated[str, Meta(max_length=256)] = ""
    reasoning: str = ""


class ChatPrompt(SilentRepr, Struct, frozen=True, tag="chat", forbid_unknown_fields=True):
    """`form`: what the answer follows; `tools` and `template`: what the chat template gets besides. JSON each, or
    empty. They are as private as the messages."""

    messages: tuple[PromptMessage, ...]
    hidden: ObfuscationSecrets | None = None
    form: FormText = ""
    tools: ToolsText = ""
    template: TemplateText = ""


class TextPrompt(SilentRepr, Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    text: str
    public: bool = False
    hidden: ObfuscationSecrets | None = None
    form: FormText = ""


class TokenPrompt(SilentRepr, Struct, frozen=True, tag="tokens", forbid_unknown_fields=True):
    tokens: tuple[TokenId, ...]
    form: FormText = ""


class SealedPrompt(Struct, frozen=True, forbid_unknown_fields=True):
    """Which prompt of which sealed request, and for which field of the body: its name, not its bytes."""

    request_id: RequestId
    index: PromptNumber
    field: PromptField


class LockedPrompt(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """A sealed prompt with the key to it, for a vault alone. Opened, it is the JSON its user wrote for `field`."""

    data: Annotated[bytes, Meta(max_length=MAX_SEALED_PROMPT_BYTES)]
    key: RequestKey
    enc: Enc
    index: PromptNumber
    field: PromptField


Prompt = ChatPrompt | TextPrompt | TokenPrompt
PromptBytes = Annotated[bytes, Meta(max_length=MAX_PROMPT_BYTES)]
write_prompt: Callable[[Prompt], bytes] = msgspec.msgpack.Encoder().encode
