"""What a frontend process (the gateway, the sealed API) and the controller say to each other.

Of a request that came sealed the gateway knows its bytes and their number, nothing else. The sealed API gets the keys
of the inner request and of the answer. It names prompts; it is never given one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from cloister.levels import LevelName, PrivateLevel
from cloister.messages.detector import Ends, Text
from cloister.messages.generation import (
    MAX_ALSO,
    Accepted,
    Also,
    AskStats,
    Cancel,
    Failed,
    Name,
    OfRequest,
    Ready,
    RequestId,
    Salt,
    SamplingParams,
    Stats,
    Submit,
    TokenId,
    Tokens,
)
from cloister.messages.lifecycle import Path, Ping, Pong, StartFailed
from cloister.messages.obfuscation import ObfuscationParams
from cloister.messages.prompts import Enc, PromptBytes, RequestKey, SealedPrompt
from cloister.messages.service import AskView, View

MAX_SEALED_BYTES = 15 * 1024 * 1024
MAX_PART_BYTES = 1 << 18


class Ask(OfRequest, frozen=True, tag="ask"):
    """Gateway → controller: serve this prompt in a vault. (A frontend that may read it sends Submit, tokens and all.)

    Requests of one tenant with one `session` share a vault. With `keep` it outlives its requests until it is idle for
    too long or EndSession comes; without, it ends with the last of them. `group` puts tenants that trust each other
    into one vault (Petridish §7.2): it comes from the keys file, never from a request. `also` are more answers to the
    same prompt, which is sent and held once.
    """

    tenant: Name
    level: PrivateLevel
    session: Name
    keep: bool
    prompt: PromptBytes
    params: SamplingParams
    group: Annotated[str, Meta(max_length=256)] = ""
    also: Annotated[tuple[Also, ...], Meta(max_length=MAX_ALSO)] = ()
    salt: Salt = ""
    obfuscation: ObfuscationParams | None = None


class EndSession(Struct, frozen=True, tag="end_session", forbid_unknown_fields=True):
    """Gateway → controller: forget this session now; with `private` also all that the service keeps of the tenant."""

    tenant: Name
    session: Name
    group: Annotated[str, Meta(max_length=256)] = ""
    private: bool = False


class Sealed(OfRequest, frozen=True, tag="sealed"):
    """Gateway → controller: a request sealed to the channel key. SealedPart or Failed come of it."""

    envelope: Annotated[bytes, Meta(max_length=MAX_SEALED_BYTES)]


class SealedPart(OfRequest, frozen=True, tag="sealed_part"):
    """Sealed API → controller → gateway: more of a sealed answer. With `end` it is whole."""

    data: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)]
    end: bool = False


class Taken(OfRequest, frozen=True, tag="taken"):
    """Gateway → controller → sealed API: the user has taken so many bytes more of a sealed answer."""

    bytes: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Leave(OfRequest, frozen=True, tag="leave"):
    """Gateway → controller → sealed API: nobody waits for this sealed answer any more. Unknown ids are ignored."""


class AskEvidence(OfRequest, frozen=True, tag="ask_evidence"):
    """Gateway → controller: evidence over this nonce, for a client that saw a log of `since` entries last."""

    nonce: Annotated[bytes, Meta(min_length=32, max_length=32)]
    since: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Evidence(OfRequest, frozen=True, tag="evidence"):
    """Controller → gateway: the document, as JSON."""

    document: Annotated[bytes, Meta(max_length=1 << 20)]


class KeyEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One API key, by its SHA-256, and whose it is (keys.Caller)."""

    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    tenant: Name
    trust_group: Annotated[str, Meta(max_length=64)] = ""
    operator: bool = False


KeyEntries = Annotated[tuple[KeyEntry, ...], Meta(max_length=65536)]


class AdmitKeys(Struct, frozen=True, tag="admit_keys", forbid_unknown_fields=True):
    """Controller → frontend: from now on these API keys and no others."""

    keys: KeyEntries


class StartFrontend(Struct, frozen=True, tag="start_frontend", forbid_unknown_fields=True):
    """Controller → frontend, first: its settings as their own JSON, the model whose tokenizer it needs, and who may
    ask."""

    version: int
    settings: Annotated[bytes, Meta(max_length=65536)]
    name: Name
    path: Path
    created: int
    allow_degraded: bool = False
    keys: KeyEntries = ()


class Listening(Struct, frozen=True, tag="listening", forbid_unknown_fields=True):
    """Gateway → controller, once: where users reach it."""

    url: Annotated[str, Meta(max_length=1024)]


class Serving(Ready, frozen=True, tag="serving"):
    """Controller → frontend, once: what is served and which levels work here. `quantised` says at which of them first
    tokens leave on a grid, and its step in milliseconds; `why_not`, why a level is not offered, with a next step."""

    levels: tuple[LevelName, ...]
    missing_layers: tuple[str, ...] = ()
    quantised: dict[LevelName, Annotated[int, Meta(ge=1, le=60_000)]] = field(default_factory=dict)
    why_not: dict[LevelName, Annotated[str, Meta(max_length=1024)]] = field(default_factory=dict)


class Examine(OfRequest, frozen=True, tag="examine"):
    """Frontend → controller: the text of a prompt that it read, and where each block of its tokens ends there. A
    detector says which of them hold nothing private; until then, and where it is not asked, all do. `also` are more
    requests with the same prompt."""

    text: Text
    ends: Ends
    also: Annotated[tuple[RequestId, ...], Meta(max_length=MAX_ALSO)] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


FormWords = Annotated[tuple[TokenId, ...], Meta(max_length=2048)]


class JudgeForm(Struct, frozen=True, tag="judge_form", forbid_unknown_fields=True):
    """Frontend → controller, once: the words around a passage with which the serving model is asked whether it is
    private (prefix.detection.judge), and the tokens of the two answers."""

    before: FormWords
    between: FormWords
    after: FormWords
    private: TokenId
    public: TokenId


AboutGenerating = Accepted | Tokens | Failed | Stats | View
AskGenerating = Submit | Examine | Cancel | AskStats | AskView | EndSession
FromGateway = Listening | JudgeForm | StartFailed | Pong | Ask | AskGenerating | Sealed | Taken | Leave | AskEvidence
ToGateway = StartFrontend | AdmitKeys | Serving | Ping | AboutGenerating | SealedPart | Evidence


class Serve(OfRequest, frozen=True, tag="serve"):
    """Controller → sealed API: answer this sealed request, which has so many prompts. SealedPart or Failed follows."""

    enc: Enc
    request: Annotated[bytes, Meta(max_length=MAX_SEALED_BYTES)]
    prompts: Annotated[int, Meta(ge=0, le=128)]
    request_key: RequestKey
    response_key: RequestKey


class AskSealed(Struct, frozen=True, tag="ask_sealed", forbid_unknown_fields=True):
    """Sealed API → controller: as `ask` says, with a sealed prompt in place of the empty one. The gateway may not send
    this: it would get the answer to a prompt that is not its own."""

    ask: Ask
    prompt: SealedPrompt


class Settled(Struct, frozen=True, tag="settled", forbid_unknown_fields=True):
    """Sealed API → controller, once: sealed off, and ready for requests."""


MishapKind = Literal[
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "MemoryError",
    "OSError",
    "RuntimeError",
    "TypeError",
    "UnicodeError",
    "ValueError",
    "other",
]


class Mishap(Struct, frozen=True, tag="mishap", forbid_unknown_fields=True):
    """Sealed API → controller: something for the log, by its kind. No text: it could hold a key."""

    kind: MishapKind


ToSealedApi = StartFrontend | AdmitKeys | Serving | Ping | AboutGenerating | Serve | Taken | Leave
FromSealedApi = Settled | StartFailed | Pong | Mishap | AskGenerating | AskSealed | SealedPart | Failed
