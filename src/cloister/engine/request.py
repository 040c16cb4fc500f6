from __future__ import annotations

from msgspec import Struct

from cloister.levels import PolicyName
from cloister.messages.types import Partition, SamplingParams, SilentRepr


class EngineRequest(SilentRepr, Struct, frozen=True):
    """A request as the engine takes it. `tenant` is for fairness, and for whose cached blocks are found. The first
    `public` tokens are one segment; the last `answered` are an answer's, given again, and are computed exactly as
    decoding computed them. `salt` narrows reuse to the same salt; `policy` says which cached blocks are found.
    `partitions` has an entry for each sequence whose private span is in a vault: the prompt then holds public tokens
    alone, and may be empty. A `background` request is computed only while no other waits or runs."""

    request_id: int
    tenant: str
    prompt: tuple[int, ...]
    params: SamplingParams
    public: int = 0
    partitions: tuple[Partition, ...] = ()
    salt: str = ""
    policy: PolicyName = "none"
    background: bool = False
    answered: int = 0

    @property
    def link(self) -> int | None:
        return self.partitions[0].link if self.partitions else None
