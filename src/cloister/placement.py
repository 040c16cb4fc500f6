"""Where processes compute: the host, a GPU in turns, or at once under MPS; decided once by the fork server's device."""

from typing import Annotated, Literal, Self

from msgspec import Meta, Struct

Role = Literal["service", "vault", "attention"]

MPS_CLIENTS = 46  # on the GPU at once: the service, attention processes and vaults; MPS itself allows 48


class Placement(Struct, frozen=True, forbid_unknown_fields=True):
    """The default is the host, and a GPU in turns: a vault answers its own link, which is a memory file."""

    attention_processes: Annotated[int, Meta(ge=0, le=16)] = 0
    vaults: Annotated[int, Meta(ge=0, le=MPS_CLIENTS)] = 0  # at once; 0: the device sets no limit

    @classmethod
    def on_mps(cls, attention_processes: int) -> Self:
        return cls(attention_processes, MPS_CLIENTS - 1 - attention_processes)

    @property
    def uses_mps(self) -> bool:
        """One client's kill during its kernel ends all. Links are made before forks: a sealed process maps no more."""
        return self.attention_processes > 0

    def answers(self, role: Role) -> bool:
        return role == ("attention" if self.uses_mps else "vault")

    def yields(self, role: Role) -> bool:
        """Whether its kernels start after those of others: a vault reads prompts while others decode."""
        return self.uses_mps and role == "vault"

    def process_of(self, slot: int) -> tuple[int, int]:
        """Its attention process, and which of its vaults that is. Neighbouring slots have different processes."""
        if not 0 <= slot < self.vaults:
            raise ValueError("no such link slot")
        index, process = divmod(slot, self.attention_processes)
        return process, index

    def slots_of(self, process: int) -> range:
        return range(process, self.vaults, self.attention_processes)
