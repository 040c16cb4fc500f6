"""What a single party holds looks like noise, whatever the secret: the very property everything else rests on.

A prompt of one repeated token through a small model; then every secret variable of a party's runtime, both halves of
its replicated shares, byte by byte and bit by bit. Bounds are eight standard deviations, which a sound sharing exceeds
less than once in a hundred million runs; one that is not sound does every time (shown below).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("spu", reason="SPU is not installed: make mpc")

from spu import libspu

from cloister_mpc import shares
from cloister_mpc.messages import GenerationSpec
from cloister_mpc.model.generation import Generation
from cloister_mpc.model.shape import one_hots
from cloister_mpc.shares import Dealer
from tests.cloister_mpc.kept import kept_programs
from tests.cloister_mpc.local import PLAN, SHAPE, weights
from tests.cloister_mpc.thread_parties import ThreadParties

Ring = NDArray[np.uint64]
SIGMAS = 8.0
TOKENS = 48
PROMPT = (5,) * TOKENS


def far_from_uniform(elements: Ring) -> float:
    """By how many standard deviations the worst of three tests is off: bytes, all bits, bits by place."""
    data = elements.view(np.uint8).reshape(-1)
    expected = data.size / 256
    chi = float(((np.bincount(data, minlength=256) - expected) ** 2 / expected).sum())
    bits = np.unpackbits(data)
    by_place = np.unpackbits(data.reshape(-1, 8), axis=1).sum(axis=0)
    found = [
        (chi - 255) / np.sqrt(2 * 255) if expected >= 5 else 0.0,
        abs(2.0 * bits.sum() - bits.size) / np.sqrt(bits.size),
        float(np.abs(2.0 * by_place - elements.size).max() / np.sqrt(elements.size)),
    ]
    return max(found)


def halves(content: bytes) -> tuple[Ring, Ring]:
    """ABY3: party i holds x_i and x_(i+1) of x = x_0 + x_1 + x_2."""
    pairs = np.frombuffer(content, np.uint64).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


@pytest.fixture(scope="module")
def held() -> Iterator[list[dict[str, bytes]]]:
    """Per party: every secret variable of a generation, after its prefill and after a step."""
    programs = kept_programs(SHAPE, GenerationSpec(TOKENS, 4, PLAN, answer="logits"))
    captured: list[dict[str, bytes]] = [{} for _ in range(3)]
    with ThreadParties() as threads:
        generations = [Generation(party.runtime, programs, threads.dealer, name="g") for party in threads.parties]

        def capture(when: str) -> None:
            names = generations[0]._variables | {"g/coarse", "g/fine"}
            for party in threads.parties:
                for name in sorted(names):
                    share = party.runtime.get_var(name)
                    meta = libspu.ValueMeta()
                    meta.ParseFromString(share.meta)
                    if meta.visibility == libspu.Visibility.VIS_SECRET:
                        assert meta.storage_type == "aby3.AShr<FM64>", name
                        captured[party.rank][f"{when} {name}"] = shares.content_of(share)

        threads.put_all(dict(weights().named()))
        threads.put_all(one_hots(SHAPE, PROMPT, TOKENS), "g/")
        threads.each(lambda party: generations[party.rank].prefill())
        capture("prefill")
        threads.put_all(one_hots(SHAPE, (7,), 1), "g/")
        threads.each(lambda party: generations[party.rank].step(0))
        capture("step")
    yield captured


UNWRITTEN = "pinned"
"""Slots for tokens to come hold a public zero until then, and their shares a public zero too."""


@pytest.mark.parametrize("rank", range(3))
def test_what_one_party_holds_of_a_generation_is_noise(held: list[dict[str, bytes]], rank: int) -> None:
    names = [name for name in held[rank] if UNWRITTEN not in name]
    assert {name.split("/", 1)[1] for name in names} >= {"coarse", "fine", "hidden", "answer", "0/cache/keys"}
    for half in range(2):
        parts = {name: halves(held[rank][name])[half] for name in names}
        assert far_from_uniform(np.concatenate(list(parts.values()))) < SIGMAS
        for name, part in parts.items():
            assert far_from_uniform(part) < SIGMAS, name


def test_all_together_they_hold_the_secret(held: list[dict[str, bytes]]) -> None:
    """Else the test above would be about something else than shares of the prompt."""
    first, second = halves(held[0]["prefill g/fine"])
    third, _ = halves(held[2]["prefill g/fine"])
    secret = (first + second + third).reshape(256, TOKENS)
    np.testing.assert_array_equal(np.nonzero(secret)[0], [5] * TOKENS)
    assert (secret[5] == 1).all()


def test_the_same_secret_dealt_twice_has_nothing_in_common() -> None:
    """A mask that is used again would pass for noise, once; the difference of two dealings shows it."""
    dealer = Dealer()
    secret = one_hots(SHAPE, PROMPT, TOKENS)["fine"]
    one, two = (dealer.deal(secret) for _ in range(2))
    for rank in range(3):
        for a, b in zip(halves(shares.content_of(one[rank])), halves(shares.content_of(two[rank])), strict=True):
            assert far_from_uniform(a - b) < SIGMAS


@pytest.mark.parametrize("name", ["fine", "coarse"])
def test_a_broken_sharing_is_seen(name: str) -> None:
    """The secret itself as one share and nothing as the others; the secret plus a small mask; half of it masked."""
    secret = one_hots(SHAPE, PROMPT, TOKENS)[name].astype(np.uint64).reshape(-1)
    rng = np.random.default_rng(7)
    noise = rng.integers(0, 2**64, secret.size, np.uint64)
    short = secret + rng.integers(0, 2**32, secret.size, np.uint64)
    half = np.where(np.arange(secret.size) % 2, noise, secret)
    for broken in (secret, np.zeros_like(secret), short, half):
        assert far_from_uniform(broken) > SIGMAS
    assert far_from_uniform(secret + noise) < SIGMAS


def test_a_deterministic_mask_is_seen_in_the_difference() -> None:
    secret = one_hots(SHAPE, PROMPT, TOKENS)["fine"].astype(np.uint64).reshape(-1)
    masks = [np.random.default_rng(3).integers(0, 2**64, secret.size, np.uint64) for _ in range(2)]
    assert far_from_uniform(secret + masks[0]) < SIGMAS
    assert far_from_uniform((secret + masks[0]) - masks[1]) > SIGMAS
