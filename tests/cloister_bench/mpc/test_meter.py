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
from cloister_bench.mpc.plan import VARIANTS, Variant
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.model import decoder

TINY = replace(SHAPE, layers=4, context=512, rotation=(1.0, 0.5), scales=(1.0, 1.0, 0.5, 0.5))


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Parties("aby3") as parties:
        yield Meter(parties, TINY, repeats=1, new_tokens=16)


@pytest.mark.release
def test_composed_kinds_of_layers_make_the_whole_step(meter: Meter) -> None:
    step = meter.steps([VARIANTS["mpcache_paper"]], 512)[0]
    assert {part.name.rsplit("_", 1)[0]: part.times for part in step.parts} == {
        "embed": 1,
        "step_leading": 3,  # the first two alone, then one for two
        "step_following": 1,
        "rescale": 1,
        "head": 1,
    }
    whole = total(meter.whole_step(VARIANTS["mpcache_paper"], 512)).whole
    # top-k goes by random pivots, so not to the byte
    assert step.cost.whole.bytes == pytest.approx(whole.bytes, rel=0.1)
    assert step.cost.whole.most_messages == pytest.approx(whole.most_messages, rel=0.1)
    assert whole.most_cpu > 0


@pytest.mark.release
def test_revealed_ranks_and_lean_functions_send_less_than_the_paper_and_the_full_cache(meter: Meter) -> None:
    variant = Variant("shared", CachePlan(), "lean")
    ours, paper, full = meter.steps([variant, VARIANTS["mpcache_paper"], VARIANTS["full"]], 512)
    assert ours.cost.whole.most_messages < paper.cost.whole.most_messages
    assert ours.cost.whole.bytes < full.cost.whole.bytes
    (layers,) = meter.steps([VARIANTS["full"]], 512, layers_only=True)
    assert layers.parts == tuple(part for part in full.parts if part.name.startswith(("step", "rescale")))


@pytest.mark.release
def test_without_a_cache_blocks_are_extrapolated_exactly(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "BLOCK", 16)
    step = meter.steps([VARIANTS["none"]], 48)[0]
    assert step.extrapolated and not meter.steps([VARIANTS["none"]], 32)[0].extrapolated
    kinds = meter._programs(VARIANTS["none"], 48)
    (measured,) = meter.parties.run([kinds.prompt(True)])
    (composed,) = (part.cost for part in step.parts if part.name.startswith("prompt"))
    assert composed.whole.bytes == pytest.approx(measured.whole.bytes, rel=0.1)
    assert composed.whole.most_messages == pytest.approx(measured.whole.most_messages, rel=0.1)
