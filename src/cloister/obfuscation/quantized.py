"""Substitutes by Greedy Quantized Sampling: λ values that would each have found the others and the secret, or an alert
where there are too few (§5.1). The same secret and prompt give the same substitutes in the same order.

Runs within which any two differ by less than ε (Theorem 5.1) are cut into blocks of at least λ+1 values without a
common word, not knowing the real one. A secret key draws λ values from its block of m: each set T of λ+1 has the
probability 1/C(m−1, λ) whichever member is real, so T reveals nothing new, however good the model. An adversary that
takes the model's probabilities as its prior still prefers the likeliest of T; ε bounds by how much.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence

from cloister.errors import TooFewCandidates
from cloister.obfuscation.entities import Entity
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import Candidate, Quantization, Sampled, Value, finished, sampling
from cloister.obfuscation.index import Prf
from cloister.obfuscation.infilling import Infilling
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer, TokenShapes
from cloister.obfuscation.tags import TaggedText
from cloister.obfuscation.variants import Substitutes

Words = Callable[[tuple[Value, ...]], frozenset[str]]
Block = list[Candidate]


class QuantizedSampler:
    """`prf` draws which candidates are taken."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: SamplingTokenizer,
        goal: SamplingGoal,
        prf: Prf,
        shapes: TokenShapes,
    ) -> None:
        self._model, self._tokenizer, self._goal, self._prf, self._shapes = model, tokenizer, goal, prf, shapes

    def substitutes(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: Collection[str] = ()
    ) -> Substitutes:
        return finished(self.sampling(texts, entities))

    def sampling(self, texts: Sequence[TaggedText], entities: Sequence[Entity]) -> Generator[int, None, Substitutes]:
        """A piece at a time (`gqs.sampling`)."""
        goal, by = self._goal, self._goal.quantization
        infilling = Infilling(self._tokenizer, self._shapes, texts, entities)
        found = yield from class_of(self._model, infilling, by)
        for slot, count in enumerate(found.found):
            if count < goal.least:
                raise _too_few(entities, infilling.entity_of(slot), count, goal)
        block = block_for(found, infilling, goal.fakes, by)
        if len(block) <= goal.least:
            raise _too_few(entities, len(entities) - 1, max(0, len(block) - 1), goal)
        context = "\0".join((*(entity.secret for entity in entities), *(text.text for text in texts))).encode()
        chosen = drawn(found.secret, block, goal.fakes, self._prf, context)
        real = next(one for one in block if one.values == found.secret)
        logprobs = tuple(one.logprob for one in (real, *chosen))
        values = tuple(infilling.values(one.values) for one in chosen)
        return Substitutes(values, logprobs, (0.0,) * len(logprobs), ("gqs",) * len(entities))


def class_of(model: LanguageModel, infilling: Infilling, by: Quantization) -> Generator[int, None, Sampled]:
    """The class of the secrets, without the values that a prompt would be read otherwise with."""
    found = yield from sampling(model, infilling.beginning, infilling.slots, by, fitting=infilling)
    members = tuple(one for one in found.members if infilling.same_shape(one.values))
    return Sampled(found.secret, members, found.found)


def block_for(found: Sampled, infilling: Infilling, fakes: int, by: Quantization) -> Block:
    return block_with(found.secret, found.members, by, fakes + 1, infilling.words)


def _too_few(entities: Sequence[Entity], number: int, found: int, goal: SamplingGoal) -> TooFewCandidates:
    category, by = entities[number].category, goal.quantization
    larger = "a larger ε" if by.distance == "relative" or by.epsilon < 1 else "a relative distance"
    has = f"Secret {number + 1} ({category}) has {found} plausible substitutes; at least {goal.least} were asked for."
    message = f"{has} Sending the prompt could give it away, so nothing was sent."
    tries = f"Try {larger} (now {by.epsilon:g}), a larger λ_max (now {by.lambda_max}), a higher temperature"
    hint = f"{tries} (now {by.temperature:g}), regular spelling, a shorter mark, a category, or a smaller λ_min."
    return TooFewCandidates(message, span=number + 1, found=found, hint=hint)


def runs_of(members: Iterable[Candidate], by: Quantization) -> list[Block]:
    """The members, the likeliest first, cut where the next differs by ε or more from the first of its run."""
    runs: list[Block] = []
    for one in sorted(members, key=lambda one: (-one.logprob, one.values)):
        if not runs or not by.holds(one.logprob, runs[-1][0].logprob):
            runs.append([])
        runs[-1].append(one)
    return runs


def blocks_of(run: Block, size: int, words: Words) -> list[Block]:
    """Blocks of `size` or a little more; fewer, larger ones where common words would leave more members without."""
    said = [words(one.values) for one in run]
    most = max(1, len(run) // size)
    cuts = [_cut(run, said, count) for count in range(most, 0, -1)]
    return max(cuts, key=lambda blocks: sum(len(block) for block in blocks if len(block) >= size))


def _cut(run: Block, said: Sequence[frozenset[str]], count: int) -> list[Block]:
    """A member goes into the first block with room and no word of its values; one that fits none is in none."""
    rooms = [len(run) // count + (at < len(run) % count) for at in range(count)]
    blocks: list[Block] = [[] for _ in rooms]
    taken: list[set[str]] = [set() for _ in rooms]
    for one, words in zip(run, said, strict=True):
        fits = (at for at, room in enumerate(rooms) if len(blocks[at]) < room and not words & taken[at])
        if (at := next(fits, None)) is not None:
            blocks[at].append(one)
            taken[at] |= words
    return blocks


def block_with(
    secret: tuple[Value, ...], members: Iterable[Candidate], by: Quantization, size: int, words: Words
) -> Block:
    """Empty if no block holds the secret."""
    run = _with(secret, runs_of(members, by))
    return _with(secret, blocks_of(run, size, words))


def drawn(secret: tuple[Value, ...], block: Block, count: int, prf: Prf, context: bytes) -> list[Candidate]:
    """`count` of the other members of the block, or all where it has no more, in a drawn order."""
    others = [one for one in block if one.values != secret]
    return prf.order(b"substitutes\0" + context, len(others)).shuffled(others)[:count]


def _with(secret: tuple[Value, ...], blocks: Iterable[Block]) -> Block:
    found: Iterator[Block] = (block for block in blocks if any(one.values == secret for one in block))
    return next(found, [])
