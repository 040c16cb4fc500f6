"""Runs attackers against Worlds, family by family in a few processes: exact, and without a server. Every trial is a new
deployment with new accounts and a new secret of the noise."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from cloister_bench.sharing.attackers import FLOODING, MARKING, SIGNALS, Case, attack, score
from cloister_bench.sharing.families import BEFORE, CANDIDATES, Family, trials
from cloister_bench.sharing.world import NO_NOISE, Reader, Setting, World

NO_NOISE_NAME, NO_VETO_NAME = "counted without noise", "counted without veto"
ALL_SHARED_NAME, NO_GRID_NAME = "T 0 without noise", "T 0 without noise and grid"
Rates = dict[tuple[str, str], list[float]]  # by setting and attacker: trials, and how often each signal was right
CHUNKS_EACH = 16  # then a process ends, with the labels that it kept
SAMPLED_EVERY = 5  # draws
CHUNK = 20 * CANDIDATES  # trials of a family at a time, so that all families grow together
_FEW = ("plain", "page by page", MARKING)


@dataclass(frozen=True, slots=True)
class Attacked:
    """`sampled`: attacks that take long or only have to win."""

    setting: Setting
    attacks: Sequence[str] = ()
    sampled: Sequence[str] = ()


def attacked(counted: Setting) -> dict[str, Attacked]:
    """Every policy, and `counted` with a switch off and the attack that should then win. Policies of papers have no
    grid."""
    shared = replace(counted, threshold=0, epsilon=NO_NOISE)
    flooded = (FLOODING,)
    return {
        "counted": Attacked(counted, ("voting", "page by page", "in advance", MARKING), (FLOODING, "popular")),
        "registered": Attacked(replace(counted, policy="registered"), _FEW, flooded),
        "partition": Attacked(replace(counted, policy="partition"), _FEW, flooded),
        "none": Attacked(replace(counted, policy="none"), _FEW, flooded),
        "safekv": Attacked(replace(counted, policy="safekv", grid_ms=0), _FEW, flooded),
        "global": Attacked(replace(counted, policy="global", grid_ms=0), _FEW, flooded),
        NO_NOISE_NAME: Attacked(replace(counted, epsilon=NO_NOISE), (), ("voting",)),
        NO_VETO_NAME: Attacked(replace(counted, veto=False), (), ("popular",)),
        ALL_SHARED_NAME: Attacked(shared, (), ("plain",)),
        NO_GRID_NAME: Attacked(replace(shared, grid_ms=0), (), ("plain",)),
    }


def attack_family(
    family: Family, reader: Reader, settings: dict[str, Attacked], count: int, seed: int, start: int = 0
) -> Rates:
    """Trials from `start` on; whole draws."""
    rates: Rates = {}
    draw = random.Random(f"{seed} {family.name} deployments from {start}")
    registered = reader.tokens(BEFORE)
    for number, trial in enumerate(islice(trials(family, start + count, seed), start, None), start):
        order = draw.sample(range(len(trial.candidates)), len(trial.candidates))
        case = Case.of(reader, trial, order)
        sampled = not number // CANDIDATES % SAMPLED_EVERY
        for name, one in settings.items():
            world = partial(World, one.setting, reader, draw.randbytes(32), registered)
            hidden = [] if one.setting.shows_all else [at for at in order if case.hides(reader, at)]
            for kind in (*one.attacks, *(one.sampled if sampled else ())):
                for attacker, weights in attack(kind, world, case).items():
                    right = (score(weights[signal], case.true, hidden) for signal in SIGNALS)
                    add_rates(rates, {(name, attacker): [1, *right]})
    return rates


def add_rates(rates: Rates, more: Rates) -> None:
    for kind, row in more.items():
        rates[kind] = [one + other for one, other in zip(rates.get(kind, [0.0] * len(row)), row, strict=True)]


_work: tuple[dict[str, Family], Reader, dict[str, Attacked], int]  # forked processes have it: it cannot be sent


def chunks(families: Sequence[Family], count: int) -> list[tuple[str, int, int]]:
    """Family, first trial, trials."""
    return [(family.name, start, min(CHUNK, count - start)) for start in range(0, count, CHUNK) for family in families]


def attack_families(
    families: Sequence[Family], reader: Reader, settings: dict[str, Attacked], count: int, seed: int
) -> Iterator[tuple[str, Rates]]:
    """Chunk by chunk, in the order in which they end."""
    global _work
    _work = {family.name: family for family in families}, reader, settings, seed
    tasks = chunks(families, count)
    workers = min(len(tasks), len(os.sched_getaffinity(0)))
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=CHUNKS_EACH) as pool:
        yield from pool.imap_unordered(_attack_chunk, tasks)


def _attack_chunk(chunk: tuple[str, int, int]) -> tuple[str, Rates]:
    name, start, count = chunk
    families, reader, settings, seed = _work
    return name, attack_family(families[name], reader, settings, count, seed, start)
