"""Who chooses substitutes, side by side: the samplers that users have, and `naive`, which puts random words there."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256

from cloister.errors import TooFewCandidates
from cloister.obfuscation.entities import Entity
from cloister.obfuscation.goal import Method, SamplingGoal
from cloister.obfuscation.index import Prf
from cloister.obfuscation.language_model import Branches, LanguageModel, SamplingTokenizer, TokenShapes
from cloister.obfuscation.sampler import Sampler
from cloister.obfuscation.tags import TaggedText
from cloister.obfuscation.variants import Substitutes, Substituting

_PIECES = re.compile(r"[^\W\d_]+|\d|[\W_]")


class Naive:
    """Random other words of the same shape: digits for digits, words for words, capitals as they were."""

    def __init__(self, words: Collection[str], fakes: int, seed: int = 0) -> None:
        self._words, self._fakes, self._draw = sorted(words), fakes, random.Random(seed)

    def substitutes(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: Collection[str] = ()
    ) -> Substitutes:
        columns = [self._others(entity.secret) for entity in entities]
        return Substitutes(tuple(zip(*columns, strict=True)))

    def _others(self, secret: str) -> list[str]:
        found: dict[str, str] = {}
        for _ in range(100 * self._fakes):
            other = "".join(map(self._other, _PIECES.findall(secret)))
            if other.casefold() != secret.casefold():
                found.setdefault(other.casefold(), other)
            if len(found) == self._fakes:
                return list(found.values())
        raise TooFewCandidates("Too few words have this shape.", span=1, found=len(found))

    def _other(self, piece: str) -> str:
        if piece.isdigit():
            return self._draw.choice("0123456789")
        if not piece.isalpha():
            return piece
        word = self._draw.choice(self._words)
        return word.upper() if len(piece) > 1 and piece.isupper() else word.title() if piece[0].isupper() else word


class Remembered:
    """A model that computes nothing twice: one prompt sampled ten times, or once for each variant, costs one."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self.vocabulary, self.max_context = model, model.vocabulary, model.max_context
        self._known: dict[tuple[tuple[int, ...], ...], float] = {}

    def branches(self, beginning: Sequence[int], temperature: float) -> AbstractContextManager[Branches]:
        return self._model.branches(beginning, temperature)

    def likelihoods(self, beginning: Sequence[int], rows: Sequence[Sequence[int]]) -> Generator[int, None, list[float]]:
        keys = [(tuple(beginning), tuple(row)) for row in rows]
        if missing := list(dict.fromkeys(key for key in keys if key not in self._known)):
            found = yield from self._model.likelihoods(beginning, [row for _, row in missing])
            self._known |= zip(missing, found, strict=True)
        return [self._known[key] for key in keys]


def new_methods(
    model: LanguageModel, tokenizer: SamplingTokenizer, words: Collection[str], fakes: int
) -> dict[str, Callable[[bytes], Substituting]]:
    """Each with the key that draws."""
    shapes = TokenShapes(tokenizer, model.vocabulary)

    def sampler(method: Method, key: bytes) -> Substituting:
        prf = Prf(sha256(key).digest())
        return Sampler(model, tokenizer, SamplingGoal(fakes, method=method), prf, shapes)

    chosen: tuple[Method, ...] = ("dictionary", "gqs", "exchangeable")
    made: dict[str, Callable[[bytes], Substituting]] = {method: partial(sampler, method) for method in chosen}
    return {"naive": lambda key: Naive(words, fakes, int.from_bytes(sha256(key).digest()[:8])), **made}
