"""What needs no model, and so no time: how many prompts the lists serve, against λ and the number of secrets, and how
many tokens a sampling model would read to draw (the paper's Figure 13), which no load of a machine changes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from statistics import mean

from cloister.errors import CloisterError
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.index import Prf
from cloister.obfuscation.language_model import Branches, SamplingTokenizer, TokenShapes
from cloister.obfuscation.sampler import Sampler
from cloister.obfuscation.variants import make_variants
from cloister_bench.obfuscation.texts import Case
from cloister_bench.suite.documents import Panel, Row, charts

LAMBDAS = (1, 3, 7, 15, 31, 63, 128)


@dataclass(slots=True)
class Even:
    """A model to which all texts are equally likely. It counts what it is asked to read."""

    vocabulary: int
    max_context: int = 4096
    tokens: int = 0

    def branches(self, beginning: Sequence[int], temperature: float) -> AbstractContextManager[Branches]:
        raise NotImplementedError

    def likelihoods(self, beginning: Sequence[int], rows: Sequence[Sequence[int]]) -> Generator[int, None, list[float]]:
        self.tokens += len(beginning) + sum(map(len, rows))
        yield from ()
        return [0.0] * len(rows)


def sizes(
    tokenizer: SamplingTokenizer, vocabulary: int, cases: Mapping[str, Sequence[Case]], joint: Sequence[Case]
) -> Iterator[Row]:
    """A row for each category and λ, then for each number of secrets, at λ = 7."""
    shapes = TokenShapes(tokenizer, vocabulary)
    served = partial(_served, tokenizer, shapes, vocabulary)
    for category, those in cases.items():
        for fakes in LAMBDAS:
            yield {"against": "λ", "line": category, "x": fakes, **served(those, fakes)}
    groups = {1: [one for those in cases.values() for one in those]}
    groups |= {count: [one for one in joint if len(one.text.spans) == count] for count in (2, 3, 4)}
    for count, those in groups.items():
        yield {"against": "secrets", "line": "λ = 7", "x": count, **served(those, 7)}


def _served(
    tokenizer: SamplingTokenizer, shapes: TokenShapes, vocabulary: int, cases: Sequence[Case], fakes: int
) -> Row:
    tokens = []
    for number, case in enumerate(cases):
        model, key = Even(vocabulary), Prf(sha256(b"trial %d" % number).digest())
        try:
            made = make_variants([case.text], Sampler(model, tokenizer, SamplingGoal(fakes), key, shapes))
        except CloisterError:
            continue
        if len(made) == fakes + 1:
            tokens.append(model.tokens)
    share = round(len(tokens) / len(cases), 3) if cases else None
    return {"tried": len(cases), "served": len(tokens), "y": share, "tokens": round(mean(tokens)) if tokens else None}


_shown = partial(Panel, "x", "y", "line")
FIGURES = {
    "obfuscation-lists": charts(
        lambda document: document["lists"],
        "what lists serve, and what drawing reads",
        _shown(where={"against": "λ"}, log="x", labels={"xlabel": "λ", "ylabel": "prompts served in full"}),
        _shown(where={"against": "secrets"}, labels={"xlabel": "secrets", "ylabel": "prompts served in full"}),
        Panel("x", "tokens", "line", where={"against": "λ"}, log="xy", labels={"xlabel": "λ", "ylabel": "tokens read"}),
        grid=(1, 3),
    ),
}
