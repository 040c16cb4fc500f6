"""What a vocabulary answers: a pool of values of which any could be the secret. A pool is one cell of a partition that
does not know the secret: each member, looked up in the same text, gets the same pool."""

from dataclasses import dataclass
from typing import Protocol

from cloister.obfuscation.index import Prf

POOL_VALUES = 16  # of one pool, at most, unless more are wanted: a language model scores each within the whole prompt


@dataclass(frozen=True, slots=True, repr=False)
class Around:
    """The prompt before and after a secret's first mention, secrets blanked. `wanted`: values, if a list has them."""

    before: str = ""
    after: str = ""
    wanted: int = 0

    @property
    def most(self) -> int:
        return max(POOL_VALUES, self.wanted)


@dataclass(frozen=True, slots=True, repr=False)
class Pool:
    """The secret is one of the values, whose order does not depend on it. No word but of names is in two of them.
    `kind` may be shown to the user: "given name, female, common"."""

    values: tuple[str, ...]
    kind: str


class Vocabulary(Protocol):
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        """None for a secret of a form or word that the vocabulary does not have. `draw` is for endless sets alone
        (numbers of an id): there any two members are equally likely to have drawn each other."""
