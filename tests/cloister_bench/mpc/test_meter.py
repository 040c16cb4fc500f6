"""Steps of a very small model, on real parties: what is composed is what a whole step costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.cloister_mpc.local import SHAPE

pytest.importorskip("spu", reason="generation on shares needs the distribution cloister-mpc")

from cloister_bench.mpc.cost import total
from cloister_bench.mpc.meter import Meter
from cloister_bench.mpc.parties import Parties
from cloister_bench.mpc.plan import VARIANTS

TINY = replace(SHAPE, layers=4, context=512, rotation=(1.0, 0.5), scales=(1.0, 1.0, 0.5, 0.5))


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Parties() as parties:
        yield Meter(parties, TINY, repeats=1, new_tokens=16)


@pytest.mark.release
def test_composed_kinds_of_programs_make_the_whole_step(meter: Meter) -> None:
    step = meter.steps([VARIANTS["mpcache"]], 512)[0]
    kinds = {part.name.rsplit("_", 1)[0]: part.times for part in step.parts}
    assert kinds == {"embed": 1, "step": 4, "rescale": 1, "head": 1}
    whole = total(meter.whole_step(VARIANTS["mpcache"], 512)).whole
    assert step.cost.whole.bytes == pytest.approx(whole.bytes, rel=0.1)
    assert step.cost.whole.most_messages == pytest.approx(whole.most_messages, rel=0.1)
    assert whole.most_cpu > 0


@pytest.mark.release
def test_selection_and_lean_functions_send_less_than_the_full_cache(meter: Meter) -> None:
    ours, full = meter.steps([VARIANTS["mpcache"], VARIANTS["full"]], 512)
    assert ours.cost.whole.bytes < full.cost.whole.bytes
