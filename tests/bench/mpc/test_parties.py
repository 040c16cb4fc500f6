"""Real parties, real shares, a small program: what is counted is what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

pytest.importorskip("spu", reason="generation on shares needs the extra [mpc]")

import jax.numpy as jnp
import numpy as np
from spu import libspu
from spu.utils import frontend

from cloister.bench.mpc.parties import Input, Parties
from cloister.errors import PartyLost


def compiled(function: Callable[..., Any], *arrays: Any) -> Any:
    names = [f"in{index}" for index in range(len(arrays))]
    secret = [libspu.Visibility.VIS_SECRET] * len(arrays)
    executable, _ = frontend.compile(
        frontend.Kind.JAX, function, arrays, {}, names, secret, lambda out: ["out"], copts=libspu.CompilerOptions()
    )
    return executable


@pytest.fixture(scope="module")
def parties() -> Iterator[Parties]:
    with Parties("aby3") as parties:
        yield parties


def test_a_product_is_right_and_its_bytes_are_counted(parties: Parties) -> None:
    left, right = np.random.rand(4, 16).astype(np.float32), np.random.rand(16, 8).astype(np.float32)
    parties.deal("in0", left)
    parties.deal("in1", right)
    product = compiled(jnp.matmul, left, right)
    cost, again = parties.run([product, product])
    assert np.allclose(parties.open("out"), left @ right, atol=1e-3)
    assert len(cost.whole.sent) == 3 and sorted(again.whole.sent) == sorted(cost.whole.sent)  # roles go round
    assert cost.whole.bytes == 4 * 8 * 52 and cost.whole.most_messages == 3  # 52 bytes a truncated product
    assert cost.operators["dot"].bytes == cost.whole.bytes and cost.operators["dot"].times == 1


def test_what_was_not_dealt_cannot_be_opened_and_the_next_program_still_runs(parties: Parties) -> None:
    ones = np.ones((2, 2), dtype=np.float32)
    with pytest.raises(PartyLost):
        parties.open("not dealt")
    parties.deal("in0", ones)
    (cost,) = parties.run([compiled(lambda x: x + x, ones)])
    assert cost.whole.bytes == 0


def test_random_numbers_of_a_type_are_dealt_once(parties: Parties) -> None:
    kind = Input((2, 3), "float32", public=False)
    first = parties.open(parties.hold(kind))
    assert first.shape == (2, 3) and np.array_equal(parties.open(parties.hold(kind)), first)
    assert parties.hold(Input((2, 3), "float32", public=True)) != parties.hold(kind)


def test_no_process_outlives_the_block() -> None:
    before = set(psutil.Process().children())
    with Parties("cheetah") as pair:
        processes = set(psutil.Process().children()) - before
        assert len(processes) == pair.count == 2
        next(iter(processes)).kill()
        with pytest.raises(PartyLost):
            pair.open("nothing")
    assert not any(process.is_running() for process in processes)
