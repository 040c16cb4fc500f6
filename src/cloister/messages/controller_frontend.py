"""Between the controller and a frontend, whichever it is: the gateway and the sealed API both speak this."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from cloister.levels import OPEN, LevelName, PrivateLevel, ReadLevel
from cloister.messages.controller_detector import Codes, Ends, Text
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Ready, Stats, Tokens
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.prompts import ObfuscationParams, PromptBytes
from cloister.messages.types import (
    Digest,
    ExtraAnswers,
    Group,
    Message,
    Name,
    Path,
    PromptTokens,
    RequestMessage,
    Salt,
    SamplingParams,
    Settings,
)

MAX_PART_BYTES = 1 << 18
MOST_A_DAY = 10**15
LAST_SECOND = 253_402_300_799  # of the year 9999


DayCount = Annotated[int, Meta(ge=0, le=MOST_A_DAY)]


class KeyEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One API key, by its SHA-256, and its owner. Without a trust group a tenant shares no vault. `expires`: seconds
    since 1970. `tokens_a_day`, `requests_a_day`: the tenant's; 0: no limit, None: the server's."""

    digest: Digest
    tenant: Name
    trust_group: Annotated[str, Meta(max_length=64)] = ""
    operator: bool = False
    expires: Annotated[int, Meta(ge=0, le=LAST_SECOND)] | None = None
    tokens_a_day: DayCount | None = None
    requests_a_day: DayCount | None = None


KeyEntries = Annotated[tuple[KeyEntry, ...], Meta(max_length=65536)]


class StartFrontend(Message, frozen=True):
    """Controller → frontend, first: its settings, the model whose tokenizer it needs, and the API keys that count."""

    settings: Settings
    name: Name
    path: Path
    created: int
    allow_degraded: bool = False
    keys: KeyEntries = ()


class AdmitKeys(Message, frozen=True):
    """Controller → frontend: from now on these API keys and no others."""

    keys: KeyEntries


class SpendToken(RequestMessage, frozen=True):
    """Frontend → controller: this anonymous token pays for a call. TokenSettled follows."""

    token: Annotated[bytes, Meta(max_length=1024)]


class TokenSettled(RequestMessage, frozen=True):
    """Controller → frontend: the token is on the disk as spent, or `refused` says why it does not count."""

    refused: Failed | None = None


class Serving(Ready, frozen=True, kw_only=True):
    """Controller → frontend, once. `quantised`: the grid of first tokens, in ms; `why_not`: with a next step."""

    levels: tuple[LevelName, ...]
    missing_layers: tuple[str, ...] = ()
    quantised: dict[LevelName, Annotated[int, Meta(ge=1, le=60_000)]] = field(default_factory=dict)
    why_not: dict[LevelName, Annotated[str, Meta(max_length=1024)]] = field(default_factory=dict)
    verify: Annotated[str, Meta(max_length=32)] = "off"
    tool_parser: Literal["auto", "hermes", "qwen3_coder", "llama3", "mistral", "gemma", "harmony"] = "auto"
    token_challenge: Annotated[str, Meta(max_length=1024)] = ""  # for WWW-Authenticate; empty: no tokens are taken


class Ask(RequestMessage, frozen=True):
    """Serve this prompt in the vault of a tenant's `session`. With `keep` it outlives its requests until idle too long
    or EndSession; a `group` shares it (Petridish §7.2). `also`: more answers."""

    tenant: Name
    level: PrivateLevel
    session: Name
    keep: bool
    prompt: PromptBytes
    params: SamplingParams
    group: Group = ""
    also: ExtraAnswers = ()
    salt: Salt = ""
    obfuscation: ObfuscationParams | None = None
    verify: bool = False


class SubmitTokens(RequestMessage, frozen=True):
    """At `open` and `shared`. `salt` keeps blocks apart; `also`: more answers; `text` and `ends` go to the detector."""

    tenant: Name
    prompt: PromptTokens
    params: SamplingParams
    public: Annotated[int, Meta(ge=0, le=1_048_576)] = 0
    salt: Salt = ""
    level: ReadLevel = OPEN
    also: ExtraAnswers = ()
    text: Text = ""
    ends: Ends = ()


class EndSession(Message, frozen=True):
    """Frontend → controller: forget this session now; with `private` also all that the service keeps of the tenant."""

    tenant: Name
    session: Name
    group: Group = ""
    private: bool = False


class AskView(RequestMessage, frozen=True):
    """Frontend → controller: what has the service received of this request (the page's "What the provider sees")?"""


class View(RequestMessage, frozen=True):
    """What the service got and made of a request, by the controller's books, without a vault's contributions: they
    suffice to solve for the prompt. A code for each block of the prompt as in controller_detector.Labels."""

    known: bool
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    asked_rows: int = 0
    asked_bytes: int = 0
    answered_rows: int = 0
    answered_bytes: int = 0
    layers: int = 0
    found: int = 0
    found_shared: int = 0
    labels: Codes = b""
    tiers: Codes = b""
    categories: Codes = b""
    streams: tuple[tuple[int, ...], ...] = ()


class SealedPart(RequestMessage, frozen=True):
    """Sealed API → controller → gateway: more of a sealed answer. With `end` it is whole."""

    data: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)]
    end: bool = False


class BytesTaken(RequestMessage, frozen=True):
    """Gateway → controller → sealed API: the user has taken more bytes of a sealed answer."""

    bytes: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class CancelSealed(RequestMessage, frozen=True):
    """Gateway → controller → sealed API: the sealed answer is not wanted. Unknown numbers are ignored."""


ToFrontend = StartFrontend | AdmitKeys | Serving | Ping | Accepted | Tokens | Failed | Stats | View | TokenSettled
FromFrontend = StartFailed | Pong | SubmitTokens | Cancel | AskStats | AskView | EndSession | SpendToken
