"""The contract of an engine, called from one thread. Tenants are opaque strings; it handles no HTTP, text or levels."""

from abc import ABC, abstractmethod

from msgspec import Struct

from cloister.fairness import ServiceMeter
from cloister.levels import PolicyName
from cloister.messages.generation import Accepted, Failed, Stats, Tokens
from cloister.messages.types import Partition, SamplingParams, SilentRepr


class EngineRequest(SilentRepr, Struct, frozen=True):
    """The first `public` tokens are one segment; the last `answered`, an answer's, are computed as decoding did. `salt`
    and `policy` bound reuse; `tenant` is for it and for fairness. Each of `partitions` has its private span in a vault:
    the prompt is public then, or empty. `compact`: a vault may approximate several prompts (vault.compact). `made`: of
    each partition, tokens after its first that another process computed."""

    request_id: int
    tenant: str
    prompt: tuple[int, ...]
    params: SamplingParams
    public: int = 0
    partitions: tuple[Partition, ...] = ()
    salt: str = ""
    policy: PolicyName = "none"
    answered: int = 0
    compact: bool = False
    made: tuple[tuple[int, ...], ...] = ()


class Engine(ABC):
    max_context: int  # prompt and output together

    @property
    @abstractmethod
    def meter(self) -> ServiceMeter:
        """What each tenant was charged. The service exchanges charges with the vaults between steps."""

    @property
    @abstractmethod
    def has_work(self) -> bool: ...

    @property
    def only_spare(self) -> bool:
        """No request needs the next step: a vault that waits for cores goes first."""
        return False

    @abstractmethod
    def submit(self, request: EngineRequest) -> Accepted | Failed: ...

    @abstractmethod
    def cancel(self, request_id: int) -> Tokens | None:
        """End a request in any state. Returns its last message, or None if there is no such request."""

    @abstractmethod
    def step(self, most: int | None = None) -> list[Tokens | Failed]: ...

    @abstractmethod
    def take_failure(self) -> bool:
        """Whether a whole step failed since the last call: the device may be lost."""

    @abstractmethod
    def forget(self, tenant: str) -> None:
        """Drop all cached pages that only this tenant has a right to. Its running requests go on uncached."""

    @abstractmethod
    def stats(self) -> Stats: ...

    @abstractmethod
    def attach_link(self, link: int, question: int, answer: int) -> None:
        """The caller closes the descriptors. A link that cannot be mapped counts as broken; requests over it fail."""

    @abstractmethod
    def attach_exported_link(self, link: int, slot: int) -> None:
        """As `attach_link`, for a vault that has the exported memory of this slot (`export_links`)."""

    @abstractmethod
    def detach_link(self, link: int) -> list[Failed]:
        """The vault behind a link is gone. Returns the failure of every request that needs it."""

    def export_links(self) -> list[int]:
        """Descriptors of the links' memory, where that is the device's. The caller closes them."""
        return []

    def label(self, request_id: int, public_tokens: int, registered: int = 0) -> None:
        """The first `public_tokens` tokens of a prompt are public (prefix.base). An engine may ignore it."""
