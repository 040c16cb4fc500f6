"""The paper's curves, and ours: how many substitutes lie within ε (Figures 5–7), the seconds that finding them takes
(Figure 13), and how often the real prompt is found against λ, ε, the number of secrets and the sampling model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from statistics import mean, stdev
from time import monotonic

from cloister.errors import CloisterError
from cloister.obfuscation.entities import add_mentions, entities_of
from cloister.obfuscation.goal import Method, SamplingGoal
from cloister.obfuscation.gqs import Quantization, Sampled, finished
from cloister.obfuscation.index import Prf
from cloister.obfuscation.infilling import Infilling
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer, TokenShapes
from cloister.obfuscation.quantized import class_of, runs_of
from cloister.obfuscation.sampler import Sampler
from cloister.obfuscation.tags import TaggedText, regularise
from cloister.obfuscation.variants import make_variants
from cloister_bench.obfuscation.adversaries import Reader, rank, right
from cloister_bench.obfuscation.texts import Case
from cloister_bench.suite.documents import Panel, Row, charts, rate_of

EPSILONS = tuple(2.0**-power for power in range(6, -1, -1))
LAMBDAS = (64, 128, 256, 512)  # λ_max
DOMAINS = {"clinical": "clinical notes", "pii-anon": "clinical notes", "résumé": "résumés"}


Rows = Iterator[Row]


@dataclass(frozen=True, slots=True)
class Sampling:
    """A model that samples or reads."""

    name: str
    model: LanguageModel
    tokenizer: SamplingTokenizer
    shapes: TokenShapes
    read: Reader


@dataclass(frozen=True, slots=True)
class Point:
    """`against`: the curve that it is a point of. `all`: by each of the models."""

    against: str
    method: Method = "exchangeable"
    fakes: int = 7
    epsilon: float = 2.0
    secrets: int = 1  # of a prompt
    all: bool = False


POINTS = (
    *(Point("λ", fakes=fakes) for fakes in (1, 3, 7, 15, 31, 63, 128)),
    *(Point("ε", "gqs", epsilon=epsilon) for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0)),
    *(Point("secrets", secrets=secrets) for secrets in (1, 2, 3, 4)),
    Point("sampler", all=True),
    Point("sampler", "gqs", all=True),
)


def bets(point: Point, by: Sampling, readers: Mapping[str, Reader], cases: Sequence[Case]) -> Rows:
    """Top-1 of each reader, the real one's rank, and the share of secrets that are served."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
    chance = []
    goal = SamplingGoal(point.fakes, method=point.method, quantization=Quantization(point.epsilon))
    for number, case in enumerate(cases):
        key = Prf(sha256(b"trial %d" % number).digest())
        try:
            made = make_variants([case.text], Sampler(by.model, by.tokenizer, goal, key, by.shapes))
        except CloisterError:
            continue
        texts = [text for (text,) in made.texts]
        chance.append(1 / len(texts))
        for name, read in readers.items():
            scores = read(texts)
            found[name].append((right(scores), rank(scores)))
    axes = {"λ": point.fakes, "ε": point.epsilon, "secrets": point.secrets}
    x = axes.get(point.against, f"{point.method} of {by.name}")
    about = {**asdict(point), "sampler": by.name, "x": x, "tried": len(cases), "served": len(chance)}
    yield {**about, "line": "chance", "y": round(mean(chance), 4) if chance else None}
    for name, these in found.items():
        hits = rate_of(sum(hit for hit, _ in these), len(these))
        row = {**about, "line": f"read by {name}", "y": hits["share"], **hits}
        yield {**row, "rank": round(mean(at for _, at in these), 3) if these else None}


def within(
    by: Sampling, cases: Sequence[Case], against: str, line: str, temperature: float = 1.0, regular: bool = False
) -> Rows:
    """How many substitutes of Alg. 1 lie within ε, absolute as in the paper. One that cannot be sampled has none."""
    counts: dict[float, list[int]] = {epsilon: [] for epsilon in EPSILONS}
    for case in cases:
        text = regularise(case.text) if regular else case.text
        found = sampled(by, text, Quantization(1.0, LAMBDAS[-1], temperature, "absolute"))
        for epsilon, those in counts.items():
            those.append(_in_run(found, epsilon) if found else 0)
    for epsilon, those in counts.items() if cases else ():
        half = 1.96 * stdev(those) / len(those) ** 0.5 if len(those) > 1 else 0.0
        row = {"against": against, "line": line, "x": epsilon, "y": round(mean(those), 2), "secrets": len(those)}
        yield {**row, "low": round(max(0.0, mean(those) - half), 2), "high": round(mean(those) + half, 2)}


def seconds(by: Sampling, cases: Sequence[Case], lambdas: Sequence[int], tokens: int = 8) -> Rows:
    """For secrets of about `tokens` tokens. ε cuts what was found: it does not change the time."""
    longs = sorted(cases, key=lambda case: abs(len(by.tokenizer.encode(" " + _secret(case.text))) - tokens))[:3]
    for most in lambdas if longs else ():
        took, many = [], []
        for case in longs:
            begun = monotonic()
            found = sampled(by, case.text, Quantization(1.0, most, 1.0, "absolute"))
            took.append(monotonic() - begun)
            many.append(len(found.members) - 1 if found and found.members else 0)
        row = {"against": "seconds", "line": f"gqs of {by.name}", "x": most, "y": round(mean(took), 3)}
        yield {**row, "found": max(many), "tokens": tokens}


def sampled(by: Sampling, text: TaggedText, how: Quantization) -> Sampled | None:
    """None for a text that cannot be sampled for: a secret that runs into what stands beside it."""
    marked = add_mentions([text])
    try:
        infilling = Infilling(by.tokenizer, by.shapes, marked, entities_of(marked))
        return finished(class_of(by.model, infilling, how))
    except CloisterError:
        return None


def by_domain(cases: Mapping[str, Sequence[Case]], most: int) -> dict[tuple[str, str], list[Case]]:
    """At most `most` secrets of each category in clinical notes and résumés."""
    found: dict[tuple[str, str], list[Case]] = {}
    for category, those in cases.items():
        for case in those:
            if (domain := DOMAINS.get(case.source)) is not None:
                found.setdefault((domain, category), []).append(case)
    return {what: these[:most] for what, these in found.items()}


def _secret(text: TaggedText) -> str:
    return text.secret(text.spans[0])


def _in_run(found: Sampled, epsilon: float) -> int:
    """How many others the run with the secret has."""
    by = Quantization(epsilon, distance="absolute")
    runs = ([one.values for one in run] for run in runs_of(found.members, by))
    return next((len(run) - 1 for run in runs if found.secret in run), 0)


def tasks(
    samplers: Sequence[Sampling], cases: Mapping[str, Sequence[Case]], joint: Sequence[Case], most: int
) -> list[Callable[[], Rows]]:
    """What is measured, in pieces; the first model's curves, and what differs with the others."""
    first, *_ = samplers
    readers, near = {one.name: one.read for one in samplers}, by_domain(cases, most)
    places = near.get(("clinical notes", "place"), [])
    every = [case for those in cases.values() for case in those[:most]]
    found: list[Callable[[], Rows]] = [
        *(partial(within, first, those, domain, category) for (domain, category), those in near.items()),
        partial(within, first, places, "places", f"{first.name}, regular spelling", regular=True),
    ]
    for one in samplers:
        found += [partial(within, one, places, "places", f"{one.name}, τ = {t:g}", t) for t in (1.0, 2.0)]
        found += [partial(seconds, one, every, LAMBDAS)]
    for point in POINTS:
        those = every if point.secrets == 1 else [one for one in joint if len(one.text.spans) == point.secrets][:most]
        found += [partial(bets, point, by, readers, those) for by in samplers[: len(samplers) if point.all else 1]]
    return found


_shown = partial(Panel, "x", "y", "line")
_ALG1, _TOP1 = {"xlabel": "ε", "ylabel": "λ of Alg. 1"}, {"ylabel": "finds the real one"}
FIGURES = {
    "obfuscation-curves": charts(
        lambda document: document["curves"],
        "substitutes within ε; who finds the real prompt",
        _shown(title="clinical notes", where={"against": "clinical notes"}, log="x", labels=_ALG1),
        _shown(title="résumés", where={"against": "résumés"}, log="x", labels=_ALG1),
        _shown(title="places in clinical notes", where={"against": "places"}, log="x", labels=_ALG1),
        _shown(title="exchangeable", where={"against": "λ"}, log="x", labels={"xlabel": "λ", **_TOP1}),
        _shown(title="gqs, λ = 7", where={"against": "ε"}, log="x", labels={"xlabel": "ε", **_TOP1}),
        _shown(title="λ = 7", where={"against": "secrets"}, labels={"xlabel": "secrets of a prompt", **_TOP1}),
        Panel("x", "served", "line", title="served", where={"against": "λ"}, log="x", labels={"xlabel": "λ"}),
        _shown(title="λ = 7", kind="bars", where={"against": "sampler"}, limit=1 / 8, labels=_TOP1),
        grid=(2, 4),
    ),
    "obfuscation-latency": charts(
        lambda document: document["curves"],
        "sampling for eight tokens",
        _shown(where={"against": "seconds"}, labels={"xlabel": "λ_max", "ylabel": "s"}),
    ),
}
