"""What a frontend asks of the processes that compute. The controller's client is one backend; tests have others."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from cloister.backend.stream import TokenStream
from cloister.errors import TokenInvalid
from cloister.levels import OPEN, PrivateLevel, ReadLevel
from cloister.messages.controller_frontend import Serving, View
from cloister.messages.controller_gateway import ExchangeOpened
from cloister.messages.generation import Stats
from cloister.messages.prompts import ObfuscationParams, SealedPrompt
from cloister.messages.types import SamplingParams


@dataclass(frozen=True)
class OpenJob:
    """A prompt that the service may read. The first `public` tokens are one segment; `salt` limits reuse."""

    prompt: tuple[int, ...] = field(repr=False)
    public: int = 0
    level: ReadLevel = OPEN
    salt: str = field(default="", repr=False)
    text: str = field(default="", repr=False)  # for a detector
    ends: tuple[int, ...] = field(default=(), repr=False)  # where each block of tokens ends in the text


@dataclass(frozen=True)
class VaultJob:
    """`prompt`: the bytes of messages.prompts.write_prompt, or the name of a sealed one. The others as in Ask."""

    level: PrivateLevel
    session: str
    keep: bool
    prompt: bytes | SealedPrompt = field(repr=False)
    group: str = ""
    salt: str = field(default="", repr=False)
    obfuscation: ObfuscationParams | None = None
    verify: bool = False


Job = OpenJob | VaultJob


class Backend(ABC):
    @property
    @abstractmethod
    def ready(self) -> Serving:
        """What is served, and at which levels (context length, vocabulary…)."""

    async def spend(self, token: bytes) -> None:
        """TokenInvalid or TokenSpent, or the token is spent now."""
        raise TokenInvalid("This server takes no tokens.", hint="Send an API key as `Authorization: Bearer <key>`.")

    @abstractmethod
    async def generate(self, tenant: str, job: Job, params: SamplingParams) -> TokenStream:
        """Return once the prompt is queued. Errors come from here or from the stream."""

    async def generate_all(self, tenant: str, job: Job, params: Sequence[SamplingParams]) -> list[TokenStream]:
        """All of them, or none if one is refused."""
        streams: list[TokenStream] = []
        try:
            for each in params:
                streams.append(await self.generate(tenant, job, each))
        except BaseException:
            for stream in streams:
                await stream.aclose()
            raise
        return streams

    @abstractmethod
    async def stats(self) -> Stats:
        """Totals for /metrics and tests."""

    async def view(self, request_id: int) -> View:
        """What the service process has received and made of one request; `known` is False if that is not kept."""
        return View(request_id, known=False)

    async def end_session(self, tenant: str, session: str, group: str = "", *, private: bool = False) -> None:
        """End this session's vault and its memory. With `private`, the service too drops this tenant's prompts."""


class SealedAnswer(ABC):
    """The sealed bytes of one answer as they come."""

    @abstractmethod
    async def next(self) -> tuple[bytes, bool]:
        """All that waits, at least something, and whether the answer is whole with it."""

    @abstractmethod
    def taken(self, count: int) -> None:
        """The user has taken this many bytes: as many more may be made."""

    @abstractmethod
    def leave(self) -> None:
        """Cancel the request. A call of `next` that waits gets ServiceUnavailable."""


class Carrier(ABC):
    """Takes sealed requests to where they can be opened, and brings the node's evidence."""

    @abstractmethod
    def carry(self, envelope: bytes) -> SealedAnswer:
        """Hand in a sealed request."""

    @abstractmethod
    async def evidence(self, nonce: bytes, since: int) -> bytes:
        """The node's evidence as JSON, over this nonce, for a client that saw a log of `since` entries last."""

    @abstractmethod
    async def open_exchange(self, header: bytes, *, chunked: bool) -> ExchangeOpened:
        """The keys of one oblivious exchange (RFC 9458), once for each header."""

    @abstractmethod
    async def key_configurations(self) -> bytes:
        """The key that oblivious exchanges need, as application/ohttp-keys."""
