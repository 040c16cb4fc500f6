"""An adversary with the code, the model and all λ+1 prompts runs the sampler for each of them, and learns nothing."""

from __future__ import annotations

import math
import random

import pytest

from cloister.obfuscation.entities import entities_of
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import Candidate, Quantization, Sampled, finished
from cloister.obfuscation.index import Prf
from cloister.obfuscation.infilling import Infilling
from cloister.obfuscation.language_model import TokenShapes
from cloister.obfuscation.quantized import QuantizedSampler, class_of
from cloister.obfuscation.tags import parse_redacted
from cloister.obfuscation.variants import make_variants
from cloister_bench.obfuscation.adversaries import right
from tests.obfuscation.fake_model import FAMILIES, NAMES, TOWNS, RuleModel, WordTokenizer
from tests.obfuscation.rerun import Rerun, Values

LAMBDA = 3
BY = Quantization(1.0, 24, distance="absolute")
NAME = 'Dear <redacted category="name">{}</redacted>, hello. Yours, {}'
LETTER = "Dear <redacted>{} {}</redacted>, come to <redacted>{}</redacted>. Dr {}"
ONE, SEVERAL = (NAME, 20), (LETTER, 6)
MORE = pytest.mark.release


def marked(frame: str, values: list[str]) -> str:
    return frame.format(values[0], values[0]) if frame == NAME else frame.format(*values, values[1])


def real_values(frame: str, draw: random.Random) -> list[str]:
    if frame == NAME:
        return [draw.choice((*NAMES, *FAMILIES))]
    return [draw.choice(NAMES), draw.choice(FAMILIES), draw.choice(TOWNS)]


class Nearest(Rerun):
    """The choice as it was: a drawn number of likelier values and the rest less likely, the nearest ones."""

    def sets(self, found: Sampled) -> list[list[Candidate]]:
        real = next(one for one in found.members if one.values == found.secret)
        others = [one for one in found.members if one is not real]
        likelier = sorted((one for one in others if one.logprob > real.logprob), key=lambda one: one.logprob)
        less = sorted((one for one in others if one.logprob <= real.logprob), key=lambda one: -one.logprob)
        counts = [max(min(above, len(likelier)), LAMBDA - len(less)) for above in range(LAMBDA + 1)]
        return [[*likelier[:above], *less[: LAMBDA - above]] for above in counts]

    def likelihood(self, found: Sampled, infilling: Infilling, observed: set[Values]) -> float:
        real = infilling.values(found.secret)
        made = [{real, *(infilling.values(one.values) for one in each)} for each in self.sets(found)]
        return math.log(made.count(observed) / len(made)) if observed in made else -math.inf


def tools(seed: int) -> tuple[RuleModel, WordTokenizer, TokenShapes]:
    tokenizer = WordTokenizer()
    return RuleModel(tokenizer.vocabulary, seed), tokenizer, TokenShapes(tokenizer, tokenizer.vocabulary)


@pytest.mark.parametrize(
    ("frame", "trials"),
    [ONE, SEVERAL, pytest.param(NAME, 80, marks=MORE), pytest.param(LETTER, 24, marks=MORE)],
    ids=["one secret", "several", "one secret, often", "several, often"],
)
def test_whoever_runs_the_sampler_again_is_right_by_chance(frame: str, trials: int) -> None:
    """Every variant would have produced the others with the same probability, exactly."""
    draw, hits, sent = random.Random(1), [], set()
    wish = SamplingGoal(LAMBDA, quantization=BY)
    for trial in range(trials):
        model, tokenizer, shapes = tools(trial % 5)
        sampler = QuantizedSampler(model, tokenizer, wish, Prf(bytes([trial]) * 32), shapes)
        made = make_variants([parse_redacted(marked(frame, real_values(frame, draw)))], sampler)
        values = [tuple(one.secret for one in made.entities), *made.substitutes.values]
        prompts = [parse_redacted(marked(frame, _words(frame, each))) for each in values]
        scores = Rerun(model, tokenizer, shapes, BY, LAMBDA).scores(prompts)
        assert all(math.isfinite(score) for score in scores), "none can be ruled out"
        assert len(set(scores)) == 1, "and all are as likely"
        hits.append(right(scores))
        sent.add(frozenset(values))
    assert sum(hits) / trials == pytest.approx(1 / (LAMBDA + 1)) and len(sent) > trials // 2


def _words(frame: str, values: tuple[str, ...]) -> list[str]:
    if frame == NAME:
        return list(values)
    name, town = values
    return [*name.split(), town]


def test_with_the_nearest_values_the_same_adversary_wins() -> None:
    """The control: the class is the same for all, and the choice around the real one gives it away."""
    draw, hits = random.Random(1), []
    for trial in range(40):
        model, tokenizer, shapes = tools(trial % 5)
        text = parse_redacted(marked(NAME, real_values(NAME, draw)))
        infilling = Infilling(tokenizer, shapes, [text], entities_of([text]))
        adversary = Nearest(model, tokenizer, shapes, BY, LAMBDA)
        chosen = draw.choice(adversary.sets(finished(class_of(model, infilling, BY))))
        fakes = [list(infilling.values(one.values)) for one in chosen]
        real = [entities_of([text])[0].secret]
        scores = adversary.scores([parse_redacted(marked(NAME, each)) for each in (real, *fakes)])
        hits.append(right(scores))
    assert sum(hits) / len(hits) > 0.45, "by chance it is 0.25"
