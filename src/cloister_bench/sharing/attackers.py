"""Attackers against a World. Each returns, for every candidate, how much speaks for it by each signal. `count`: what
`cached_tokens` reports; `time`: when first tokens leave; `clock`: exactly what was computed, which bounds first tokens
without a grid or padded to a line of it, and the throughput of other streams."""

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from operator import eq
from typing import NamedTuple

from cloister.prefix.public_pages import ALL, Template
from cloister_bench.sharing.families import BEFORE, Family, Trial, trials
from cloister_bench.sharing.world import NO_NOISE, PAGE, Reader, Seen, Setting, Tokens, World

SIGNALS = ("count", "time", "clock")
IDENTITIES = (1, 2, 5, 7, 12)
SPARE = 4  # identities above the threshold that a sketch's collisions cost an attacker, where there is no noise
VOTERS = 7  # in advance and over restarts
CROWD = 20  # accounts that sent a popular text
FLOODED_PROMPTS = 6  # room in the cache that is flooded
FLOOD_TOKENS = 10_000  # from here on, numbers of tokens of prompts that mean nothing
LATER = 0.25  # what a look is worth beside the one before: a page that fewer votes made public had the victim's
TOLERANCE = 1e-10  # of sums of weights
VICTIM, RESTART = "victim", "the service starts again"
MARKING, FLOODING = "marking", "flooding"

Weights = dict[str, list[float]]  # by signal, for each candidate
Found = dict[str, Weights]  # by attacker


@dataclass(frozen=True, slots=True)
class Case:
    """One trial as tokens. `common`: pages that all candidates begin with, which tell nothing."""

    prompts: tuple[Tokens, ...]
    true: int
    other: Tokens
    common: int
    shared: tuple[tuple[int, ...], ...]  # pages that two candidates have in common
    order: tuple[int, ...]

    @classmethod
    def of(cls, reader: Reader, trial: Trial, order: Sequence[int]) -> "Case":
        prompts = tuple(map(reader.tokens, trial.candidates))
        shared = tuple(tuple(_common_pages(one, another) for another in prompts) for one in prompts)
        return cls(prompts, trial.true, reader.tokens(trial.other), min(shared[0]), shared, tuple(order))

    @property
    def victims(self) -> Tokens:
        return self.prompts[self.true]

    def hides(self, reader: Reader, one: int) -> bool:
        """Whether a detector holds this candidate from the first page that tells something."""
        return reader.passed(self.prompts[one]) // PAGE <= self.common

    def in_order(self) -> Iterator[tuple[int, Tokens, int]]:
        """Each candidate, and how many of its pages an identity has from this walk itself or from what is common."""
        before: list[int] = []
        for one in self.order:
            yield one, self.prompts[one], max((self.shared[one][other] for other in before), default=self.common)
            before.append(one)


def _common_pages(one: Tokens, other: Tokens) -> int:
    return sum(1 for _ in takewhile(bool, map(eq, one, other))) // PAGE


class Notes:
    """What attackers saw beyond their own pages, as shares of a candidate's other pages."""

    def __init__(self, setting: Setting, case: Case) -> None:
        self._setting, self._case = setting, case
        self._weights: Weights = {signal: [0.0] * len(case.prompts) for signal in SIGNALS}

    def add(self, one: int, seen: Seen, own: int, look: "Look") -> None:
        tokens, pages = len(self._case.prompts[one]), look.pages
        if pages is not None:  # all before its last page was looked at already
            tokens, own = pages * PAGE + 1, max(pages - 1, min(own, pages))
        rest = max(1, (tokens - 1) // PAGE - own)
        expected, took = (self._setting.milliseconds(tokens - PAGE * found) for found in (own, max(seen.found, own)))
        saved = (expected - took) / PAGE
        for signal, more in zip(SIGNALS, (seen.reported - own, saved, seen.found - own), strict=True):
            self._weights[signal][one] += look.weight * max(0, more) / rest

    def copy(self) -> Weights:
        return {signal: list(weights) for signal, weights in self._weights.items()}


@dataclass(frozen=True, slots=True)
class Look:
    """One identity sends all candidates, or their first pages. With a `name`, an attacker guesses after it."""

    tenant: str
    name: str = ""
    weight: float = 1.0
    pages: int | None = None


Script = list[str | Look]  # a name sends the victim's prompt


def voters(number: int) -> str:
    return "plain" if number == 1 else f"{number} voters"


def _voting(setting: Setting, case: Case) -> Script:
    """Each request of an identity is a look, and a vote for the next one."""
    most = max(IDENTITIES) if setting.epsilon < NO_NOISE else setting.threshold + SPARE
    named = {number: voters(number) for number in (*IDENTITIES, most)}
    return [VICTIM, *(Look(f"voter-{one}", named.get(one, ""), LATER**one) for one in range(1, most + 1))]


def _page_by_page(setting: Setting, case: Case) -> Script:
    """Each page by another identity: its beginning is known once the page before it was seen."""
    pages = range(case.common + 1, min(map(len, case.prompts)) // PAGE)
    return [VICTIM, *(Look(f"reader-{page}", "page by page", pages=page) for page in pages)]


def _in_advance(setting: Setting, case: Case) -> Script:
    """All but one vote before the victim comes, the last one looks for what has changed since. After a restart no
    identity has a copy, so that the second to ask sees the counts, without a new vote."""
    before = [Look(f"voter-{number}", weight=-(number == VOTERS - 1)) for number in range(1, VOTERS)]
    again = (RESTART, Look("voter-1", weight=0), Look("voter-2", "over restarts"))
    return [*before, VICTIM, Look("last", "in advance"), *again, *again]


def _popular(setting: Setting, case: Case) -> Script:
    """A crowd sent the text, which does not make it fit to be known: only the veto holds it."""
    return [*(f"member-{number}" for number in range(CROWD)), Look("outsider", f"sent by {CROWD}")]


SCRIPTS: dict[str, Callable[[Setting, Case], Script]] = {
    "plain": lambda setting, case: [VICTIM, Look("outsider", "plain")],
    "voting": _voting,
    "page by page": _page_by_page,
    "in advance": _in_advance,
    "popular": _popular,
    MARKING: lambda setting, case: [VICTIM, Look("outsider", MARKING)],  # both mark theirs public for their own account
}


def attack(name: str, make: Callable[..., World], case: Case) -> Found:
    """`make`: a World of this number of blocks, or of many."""
    if name == FLOODING:
        return {FLOODING: flooding(make, case)}
    world, marked = make(), name == MARKING
    notes, found = Notes(world.setting, case), {}
    for step in SCRIPTS[name](world.setting, case):
        if step == RESTART:
            world.restart()
        elif isinstance(step, str):
            world.ask(step, case.victims, marked=marked)
        else:
            for one, prompt, own in case.in_order():
                notes.add(one, world.ask(step.tenant, prompt, pages=step.pages, marked=marked), own, step)
            found[step.name] = notes.copy()
    return {name: weights for name, weights in found.items() if name}


def flooding(make: Callable[..., World], case: Case) -> Weights:
    """One identity plants all candidates, another floods the cache before and after the victim; which plants outlive
    others? Compared with what the attacker simulates for a victim that sent none of them. Prompts are cut to one
    length: a cache's fill shows the victim's length under every policy."""
    length = min(map(len, (*case.prompts, case.other))) // PAGE
    room = length * FLOODED_PROMPTS
    real, expected = (_outlived(make(room), case, sent, length) for sent in (case.victims, case.other))
    reported = [float(abs(one.reported - other.reported)) for one, other in zip(real, expected, strict=True)]
    found = [float(abs(one.found - other.found)) for one, other in zip(real, expected, strict=True)]
    return {"count": reported, "time": found, "clock": found}


def _outlived(world: World, case: Case, sent: Tokens, length: int) -> list[Seen]:
    def flood(*numbers: int) -> None:
        for number in numbers:
            start = FLOOD_TOKENS * number
            world.ask("flooder", tuple(range(start, start + length * PAGE + 1)))
        world.pass_time("flooder")

    for one in case.order:
        world.ask("planter", case.prompts[one], pages=length)
    flood(1)
    world.ask(VICTIM, sent, pages=length)
    flood(2, 3)
    seen = {one: world.ask("planter", case.prompts[one], pages=length) for one in case.order}
    return [seen[one] for one in range(len(case.prompts))]


def score(weights: Sequence[float], true: int, hidden: Sequence[int]) -> float:
    """The probability that the guess is right, drawn among the candidates for which most speaks. If nothing does,
    it is one of those that could not have been seen: the attacker knows the detector."""
    most = max(weights)
    best: Sequence[int] = [one for one, weight in enumerate(weights) if weight >= most - TOLERANCE]
    best = hidden if hidden and most < TOLERANCE else best
    return 1 / len(best) if true in best else 0.0


NO_NOISE_NAME, NO_VETO_NAME = "counted without noise", "counted without veto"
ALL_SHARED_NAME, NO_GRID_NAME = "T 0 without noise", "T 0 without noise and grid"
Rates = dict[tuple[str, str], list[float]]  # by setting and attacker: trials, and how often each signal was right
_FEW = ("plain", "page by page", MARKING, FLOODING)


class Attacked(NamedTuple):
    setting: Setting
    attacks: Sequence[str]


def attacked(counted: Setting) -> dict[str, Attacked]:
    """Every policy, and `counted` with a switch off and the attack that should then win. Policies of papers have no
    grid."""
    shared = replace(counted, threshold=0, epsilon=NO_NOISE)
    return {
        "counted": Attacked(counted, ("voting", "page by page", "in advance", MARKING, FLOODING, "popular")),
        "registered": Attacked(replace(counted, policy="registered"), _FEW),
        "partition": Attacked(replace(counted, policy="partition"), _FEW),
        "none": Attacked(replace(counted, policy="none"), _FEW),
        "global": Attacked(replace(counted, policy="global", grid_ms=0), _FEW),
        NO_NOISE_NAME: Attacked(replace(counted, epsilon=NO_NOISE), ("voting",)),
        NO_VETO_NAME: Attacked(replace(counted, veto=False), ("popular",)),
        ALL_SHARED_NAME: Attacked(shared, ("plain",)),
        NO_GRID_NAME: Attacked(replace(shared, grid_ms=0), ("plain",)),
    }


def attack_family(family: Family, reader: Reader, settings: dict[str, Attacked], count: int, seed: int) -> Rates:
    rates: Rates = {}
    draw = random.Random(f"{seed} {family.name} deployments")
    registered = [Template("common", (ALL,), "0" * 64, reader.tokens(BEFORE))]
    for trial in trials(family, count, seed):
        order = draw.sample(range(len(trial.candidates)), len(trial.candidates))
        case = Case.of(reader, trial, order)
        for name, (setting, attacks) in settings.items():
            world = partial(World, setting, reader, draw.randbytes(32), registered)
            hidden = [] if setting.shows_all else [at for at in order if case.hides(reader, at)]
            for kind in attacks:
                for attacker, weights in attack(kind, world, case).items():
                    right = (score(weights[signal], case.true, hidden) for signal in SIGNALS)
                    add_rates(rates, {(name, attacker): [1, *right]})
    return rates


def add_rates(rates: Rates, more: Rates) -> None:
    for kind, row in more.items():
        rates[kind] = [one + other for one, other in zip(rates.get(kind, [0.0] * len(row)), row, strict=True)]


_work: tuple[Reader, dict[str, Attacked], int, int]  # forked processes have it: it cannot be sent


def attack_families(
    families: Sequence[Family], reader: Reader, settings: dict[str, Attacked], count: int, seed: int
) -> Iterator[tuple[str, Rates]]:
    """Family by family, in the order in which they end."""
    global _work
    _work = reader, settings, count, seed
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        yield from pool.imap_unordered(_attack_one, families)


def _attack_one(family: Family) -> tuple[str, Rates]:
    return family.name, attack_family(family, *_work)
