"""Attackers against a World. Each returns, for every candidate, how much speaks for it by each signal. `count`: what
`cached_tokens` reports; `time`: when first tokens leave; `clock`: exactly what was computed, which bounds first tokens
without a grid or padded to a line of it, and the throughput of other streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cloister_bench.sharing.world import BLOCKS, NO_NOISE, PAGE, Reader, Seen, Setting, Tokens, World, common_pages

SIGNALS = ("count", "time", "clock")
IDENTITIES = (1, 2, 5, 7, 12)
SPARE = 4  # identities above the threshold that a sketch's collisions cost an attacker, where there is no noise
VOTERS = 7  # the attackers of `advance` and `restart`
CROWD = 20  # accounts that sent a popular text
FLOODED_PROMPTS = 6  # room in the cache that is flooded
FLOOD_TOKENS = 10_000  # from here on, numbers of tokens of prompts that mean nothing
RESTARTS = 2
LATER = 0.25  # what a look is worth beside the one before: a page that fewer votes made public had the victim's
TOLERANCE = 1e-10  # of sums of weights
VICTIM, MARKING = "victim", "marking"

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
    def of(cls, reader: Reader, texts: Sequence[str], true: int, other: str, order: Sequence[int]) -> Case:
        prompts = tuple(map(reader.tokens, texts))
        shared = tuple(tuple(common_pages(one, another) for another in prompts) for one in prompts)
        common = min(shared[0])
        return cls(prompts, true, reader.tokens(other), common, shared, tuple(order))

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


class Notes:
    """What attackers saw beyond pages of their own, as shares of a candidate's other pages."""

    def __init__(self, setting: Setting, case: Case) -> None:
        self._setting, self._case = setting, case
        self._weights: Weights = {signal: [0.0] * len(case.prompts) for signal in SIGNALS}

    def add(self, one: int, seen: Seen, own: int, *, pages: int | None = None, weight: float = 1.0) -> None:
        tokens = len(self._case.prompts[one]) if pages is None else pages * PAGE + 1
        rest = max(1, (tokens - 1) // PAGE - own)
        expected, took = (self._setting.milliseconds(tokens - PAGE * found) for found in (own, max(seen.found, own)))
        saved = (expected - took) / (self._setting.ms_per_token * PAGE)
        for signal, more in zip(SIGNALS, (seen.reported - own, saved, seen.found - own), strict=True):
            self._weights[signal][one] += weight * max(0, more) / rest

    def copy(self) -> Weights:
        return {signal: list(weights) for signal, weights in self._weights.items()}


def plain(world: World, case: Case) -> Found:
    """One identity sends each candidate once."""
    world.ask(VICTIM, case.victims)
    return {"plain": _look(world, case)}


def voters(number: int) -> str:
    return "plain" if number == 1 else f"{number} voters"


def voting(world: World, case: Case) -> Found:
    """Identity after identity sends all candidates: each of its requests is a look, and a vote for the next one."""
    world.ask(VICTIM, case.victims)
    notes, found = Notes(world.setting, case), {}
    noise = world.setting.epsilon < NO_NOISE
    for number in range(1, 1 + (max(IDENTITIES) if noise else world.setting.threshold + SPARE)):
        for one, prompt, own in case.in_order():
            notes.add(one, world.ask(f"voter-{number}", prompt), own, weight=LATER**number)
        if number in IDENTITIES or number == world.setting.threshold + SPARE:
            found[voters(number)] = notes.copy()
    return found


def adaptive(world: World, case: Case) -> Found:
    """Page by page, each page by another identity: a page's beginning is known once the page before it was seen."""
    world.ask(VICTIM, case.victims)
    notes = Notes(world.setting, case)
    for page in range(case.common + 1, min(map(len, case.prompts)) // PAGE):
        for one, prompt, own in case.in_order():
            seen = world.ask(f"reader-{page}", prompt, pages=page)
            notes.add(one, seen, max(page - 1, min(own, page)), pages=page)
    return {"page by page": notes.copy()}


def advance_and_restart(world: World, case: Case) -> Found:
    """All but one vote before the victim comes, the last one looks for what has changed since. Then the service starts
    again, twice: no identity has copies of its own, so that the second to ask sees the counts, without a new vote."""
    notes = Notes(world.setting, case)
    for number in range(1, VOTERS):
        for one, prompt, own in case.in_order():
            seen = world.ask(f"voter-{number}", prompt)
            if number == VOTERS - 1:
                notes.add(one, seen, own, weight=-1)
    world.ask(VICTIM, case.victims)
    for one, prompt, own in case.in_order():
        notes.add(one, world.ask(f"voter-{VOTERS}", prompt), own)
    found = {"in advance": notes.copy()}
    for _ in range(RESTARTS):
        world.restart()
        for number in (1, 2):
            for one, prompt, own in case.in_order():
                seen = world.ask(f"voter-{number}", prompt)
                if number == 2:
                    notes.add(one, seen, own)
    return {**found, "over restarts": notes.copy()}


def flooding(make: Callable[[int], World], case: Case) -> Found:
    """One identity plants all candidates, another floods the cache before and after the victim; which plants outlive
    others? Compared with what the attacker simulates for a victim that sent none of them. Prompts are cut to one
    length: a cache's fill shows the victim's length under every policy."""
    length = min(map(len, (*case.prompts, case.other))) // PAGE
    room = length * FLOODED_PROMPTS
    real, expected = (_outlived(make(room), case, sent, length) for sent in (case.victims, case.other))
    reported = [float(abs(one.reported - other.reported)) for one, other in zip(real, expected, strict=True)]
    found = [float(abs(one.found - other.found)) for one, other in zip(real, expected, strict=True)]
    return {"flooding": {"count": reported, "time": found, "clock": found}}


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


def popular(world: World, case: Case) -> Found:
    """The victim's text is one that a crowd sent, which does not make it fit to be known: only the veto holds it."""
    for number in range(CROWD):
        world.ask(f"member-{number}", case.victims)
    return {f"sent by {CROWD}": _look(world, case)}


def marking(world: World, case: Case) -> Found:
    """The victim marks its prompt public for its own account; the attacker marks its guesses."""
    world.ask(VICTIM, case.victims, marked=True)
    return {MARKING: _look(world, case, marked=True)}


def _look(world: World, case: Case, *, marked: bool = False) -> Weights:
    notes = Notes(world.setting, case)
    for one, prompt, own in case.in_order():
        notes.add(one, world.ask("stranger", prompt, marked=marked), own)
    return notes.copy()


def score(weights: Sequence[float], true: int, hidden: Sequence[int]) -> float:
    """The probability that the guess is right, drawn among the candidates for which most speaks. If nothing does,
    it is one of those that could not have been seen: the attacker knows the detector."""
    most = max(weights)
    best: Sequence[int] = [one for one, weight in enumerate(weights) if weight >= most - TOLERANCE]
    best = hidden if hidden and most < TOLERANCE else best
    return 1 / len(best) if true in best else 0.0


Attack = Callable[[Callable[[int], World], Case], Found]  # the function makes a World with this number of blocks
ATTACKS: dict[str, Attack] = {
    "plain": lambda make, case: plain(make(BLOCKS), case),
    "voting": lambda make, case: voting(make(BLOCKS), case),
    "adaptive": lambda make, case: adaptive(make(BLOCKS), case),
    "advance": lambda make, case: advance_and_restart(make(BLOCKS), case),
    "flooding": flooding,
    "popular": lambda make, case: popular(make(BLOCKS), case),
    "marking": lambda make, case: marking(make(BLOCKS), case),
}
