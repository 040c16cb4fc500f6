"""An attacker that adapts (SafeKV §III-B): it finds a secret part by part, by the clock and `cached_tokens`. Each look
is another identity's, since its own copy would answer the second time; between two looks the cache is flooded, so that
what the first left there goes. A blind attacker guesses beside it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

from cloister_bench.sharing.attack import Probe
from cloister_bench.sharing.prompts import BEFORE, Secret, flood_prompt, make_secret

SETTLE_S = 0.3  # after the victim has asked: a detector reads in that time
LOOKS = 2
MOST_HITS = 60


class Tenant(Protocol):
    def ask(self, prompt: str) -> Probe: ...


@dataclass(frozen=True, slots=True)
class Extension:
    """A part is reached when all before it were found; `blind` guesses count among the reached parts."""

    reached: int
    right: int
    blind: int
    parts: int

    @property
    def whole(self) -> bool:
        return self.right == self.parts


def extensions(
    victim: Tenant,
    identities: Sequence[Tenant],
    trials: int,
    seed: int,
    *,
    parts: int,
    candidates: int,
    flood: int = 2,
    settle: Callable[[float], None] = time.sleep,
) -> list[Extension]:
    draw = random.Random(seed)
    found = []
    for _ in range(trials):
        secret = make_secret(draw, parts, candidates)
        victim.ask(BEFORE + "".join(part[true] for part, true in zip(secret.parts, secret.true, strict=True)))
        settle(SETTLE_S)
        found.append(_extend(secret, identities, draw, flood))
    return found


def _extend(secret: Secret, identities: Sequence[Tenant], draw: random.Random, flood: int) -> Extension:
    others, parts = cycle(identities), len(secret.parts)
    known, right, blind = BEFORE, 0, 0
    for reached, (part, true) in enumerate(zip(secret.parts, secret.true, strict=True), 1):
        blind += draw.randrange(len(part)) == true
        if _choose(known, part, others, draw, flood) != true:
            return Extension(reached, right, blind, parts)
        right += 1
        known += part[true]
    return Extension(parts, right, blind, parts)


def _choose(known: str, part: Sequence[str], others: cycle[Tenant], draw: random.Random, flood: int) -> int:
    """The candidate of which most was found; among equals the one whose first tokens came soonest."""
    found, seconds = [0] * len(part), [0.0] * len(part)
    order = list(range(len(part)))
    for look in range(LOOKS):
        who = next(others)
        who.ask(known + flood_prompt(draw))  # from now on it has the known beginning cached for every candidate
        draw.shuffle(order)
        for one in order:
            probe = who.ask(known + part[one])
            seconds[one] += probe.seconds
            if not look:  # later all are there, by the first look itself
                found[one] = probe.cached
        for _ in range(flood if look + 1 < LOOKS else 0):
            next(others).ask(flood_prompt(draw))
    draw.shuffle(order)
    return min(order, key=lambda one: (-found[one], seconds[one]))


def exposure(
    writer: Tenant,
    others: Sequence[Tenant],
    seed: int,
    *,
    patience: int = 20,
    settle: Callable[[float], None] = time.sleep,
) -> int | None:
    """How often others find a prompt before it is taken back (§V-C); MOST_HITS if never, None if none finds one."""
    draw = random.Random(seed)
    for _ in range(patience):
        prompt = flood_prompt(draw)
        writer.ask(prompt)
        settle(SETTLE_S)
        first = others[0].ask(prompt)
        if first.cached > first.tokens // 2:  # a page or two may be its own, from another prompt
            break
    else:
        return None
    for hits in range(1, MOST_HITS):
        if others[hits % len(others)].ask(prompt).cached < first.cached // 2:
            return hits
    return MOST_HITS
