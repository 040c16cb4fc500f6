"""What the engine asks of vLLM: requests in, tokens out. Tests have another."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from cloister.compute.layout import Remote
from cloister.errors import SetupError
from cloister.messages.types import SamplingParams, TokenLogprob


class Made(NamedTuple):
    """Of one request in one step. `finish`: stop, length, cancelled or failed."""

    number: int
    tokens: tuple[int, ...]
    scores: tuple[TokenLogprob, ...] | None
    finish: str | None


class Job(NamedTuple):
    """`most`: tokens of the answer. `remote`: the vault that has the prompt; `prompt` is the answer's first token then.
    `own`, `public`: other requests find blocks of the first `public` tokens, those behind only if `own` is theirs, too;
    without `own` they find none."""

    number: int
    prompt: Sequence[int]
    params: SamplingParams
    most: int
    remote: Remote | None = None
    own: str = ""
    public: int = 0


class Core(ABC):
    vocabulary: int
    max_context: int
    blocks: int
    block_tokens: int
    asks_vaults = False

    @abstractmethod
    def add(self, job: Job) -> None:
        """ValueError where vLLM refuses the parameters."""

    @abstractmethod
    def abort(self, number: int) -> None: ...

    @abstractmethod
    def step(self) -> list[Made]: ...

    def attach(self, link: int, question: int, answer: int) -> None:
        """Where it asks vaults. CloisterError or OSError if the link cannot be mapped."""
        raise SetupError("This engine asks no vaults.")

    def detach(self, link: int) -> None:
        return None

    def broken(self) -> dict[int, str]:
        """Links that failed in the last step, and how."""
        return {}
