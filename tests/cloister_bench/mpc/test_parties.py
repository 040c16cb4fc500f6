"""Real parties, real shares, a small program: what is counted is what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("spu", reason="generation on shares needs the distribution cloister-mpc")

import jax.numpy as jnp
import numpy as np
from spu import libspu
from spu.utils import frontend

from cloister.errors import PartyLost
from cloister_bench.mpc.parties import Input, Parties
from cloister_mpc.model.programs import Program


def compiled(function: Callable[..., Any], *sizes: tuple[int, ...]) -> Program:
    arrays = [np.ones(size, dtype=np.float32) for size in sizes]
    names = tuple(f"in{index}" for index in range(len(arrays)))
    secret = [libspu.Visibility.VIS_SECRET] * len(arrays)
    executable, _ = frontend.compile(
        frontend.Kind.JAX, function, arrays, {}, names, secret, lambda out: ["out"], copts=libspu.CompilerOptions()
    )
    return Program("compiled", executable.code, names, ("out",))


@pytest.fixture(scope="module")
def parties() -> Iterator[Parties]:
    with Parties(profile=True) as parties:
        yield parties


def test_the_bytes_of_a_product_are_counted(parties: Parties) -> None:
    cost = parties.cost_of(compiled(jnp.matmul, (4, 16), (16, 8)))
    assert cost.bytes == 4 * 8 * 52 and cost.messages == 3  # 52 bytes a truncated product
    assert cost.bytes > cost.most_bytes >= cost.bytes / 3


def test_what_is_no_program_fails_and_the_next_still_runs(parties: Parties) -> None:
    doubled = compiled(lambda x: x + x, (2, 2))
    with pytest.raises(PartyLost, match="A party failed"):
        parties.cost_of(doubled._replace(code=doubled.code.replace(b"pphlo.add", b"pphlo.song")))
    assert parties.cost_of(doubled).bytes == 0


def test_random_numbers_of_a_type_are_dealt_once(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Input] = []
    draw = Input.draw
    monkeypatch.setattr(Input, "draw", lambda kind: drawn.append(kind) or draw(kind))
    secret, public = Input((2, 3), "float32", public=False), Input((2, 3), "float32", public=True)
    assert parties.hold(secret) == parties.hold(secret) != parties.hold(public)
    assert drawn == [secret, public]
