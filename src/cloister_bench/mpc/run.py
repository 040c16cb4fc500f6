"""The whole measurement: which parts, in which order, on which parties, and what is kept when one fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack

from msgspec.structs import replace

from cloister_bench.mpc.cost import total
from cloister_bench.mpc.meter import Meter, Step, gatherings, measure_function
from cloister_bench.mpc.parties import Parties
from cloister_bench.mpc.plan import PARTS, VARIANTS, Part, Variant, ablation, hierarchies
from cloister_bench.mpc.quality import QualityRow
from cloister_bench.mpc.results import Results, cost_row
from cloister_bench.suite.measurement import Measurement, Watcher
from cloister_mpc.config import Protocol
from cloister_mpc.model.shape import ModelShape

Judge = Callable[[Callable[[str], None]], list[QualityRow]]
PROFILED = ("full", "full_lean", "mpcache_paper", "mpcache")
GPT2 = ModelShape(
    layers=12,
    heads=12,
    kv_heads=12,
    head_size=64,
    hidden=768,
    inner=3072,
    vocabulary=50257,
    positions=1024,
    context=1024,
    epsilon=1e-5,
    activation="gelu",
    gated=False,
    biases=True,
    tied=False,
    rotation=(),
    scales=(1.0,) * 12,
)
"""Measured without its weights: costs depend on sizes alone."""


class Bench(Measurement[Results]):
    """Measures on parties that it starts."""

    def __init__(
        self,
        results: Results,
        shape: ModelShape,
        watcher: Watcher,
        save: Callable[[], None] = lambda: None,
        *,
        quality: Judge | None = None,
    ) -> None:
        super().__init__(results, watcher, save)
        self._plan = results.plan
        self._shape = shape
        self._judge = quality
        self._meters: dict[Protocol, Meter] = {}

    def run(self, parts: Collection[Part]) -> None:
        measures: dict[Part, Callable[[], None]] = {
            "lengths": self._lengths,
            "composition": self._composition,
            "ablation": self._ablation,
            "gathering": self._gathering,
            "hierarchies": self._hierarchies,
            "sharing": self._sharing,
            "necessity": self._necessity,
            "two_party": self._two_party,
            "quality": self._quality,
        }
        with ExitStack() as self._running:
            for part in (part for part in PARTS if part in parts):
                if self._in_time(part):
                    with self._noting(part):
                        measures[part]()
        self._save()

    def _in_time(self, what: str) -> bool:
        if self._elapsed < self._plan.seconds:
            return True
        self._results.left_out.append(what)
        return False

    def _failed(self, part: str, failure: Exception) -> None:
        super()._failed(part, failure)
        self._end_parties()  # they may hold half a message

    def _lengths(self) -> None:
        """Figure 10."""
        plan, results = self._plan, self._results
        self._watcher.begin("lengths", len(plan.lengths))
        variants = [VARIANTS[name] for name in plan.ways]
        for seq in plan.lengths:
            if not self._in_time(f"lengths, T = {seq}"):
                continue
            for variant, step in zip(variants, self._meter().steps(variants, seq), strict=True):
                results.add_run(variant.name, "aby3", seq, step.cost, extrapolated=step.extrapolated)
                if seq == plan.operators_seq and variant.name in PROFILED:
                    results.add_operators(variant.name, "step", seq, step.cost)
                    for part in step.parts:
                        results.add_operators(variant.name, part.name, seq, part.cost)
            self._watcher.advance(f"T = {seq}")
            self._save()

    def _composition(self) -> None:
        """A step composed of its kinds of programs against all its programs run in sequence."""
        seq, variant = self._plan.composition_seq, VARIANTS["mpcache"]
        self._watcher.begin("composition", 1)
        composed = cost_row(self._meter().steps([variant], seq)[0].cost.whole)
        whole = cost_row(total(self._meter().whole_step(variant, seq)).whole)
        off = {key: round(whole[key] / composed[key] - 1, 4) for key in composed if composed[key]}
        row = {"method": variant.name, "seq": seq, "composed": composed, "whole": whole, "deviation": off}
        self._results.rows["composition"].append(row)
        self._watcher.advance(f"{variant.name}, T = {seq}")

    def _ablation(self) -> None:
        """Figure 11."""
        seq = self._plan.ablation_seq
        for variant, step in self._each("ablation", ablation(), seq):
            self._results.add("ablation", step.cost, step=variant.name, functions=variant.functions, seq=seq)

    def _hierarchies(self) -> None:
        """Table 6."""
        seq = self._plan.ablation_seq
        for variant, step in self._each("hierarchies", hierarchies(), seq):
            self._results.add("hierarchies", step.cost, levels=variant.name, seq=seq)

    def _sharing(self) -> None:
        """Figure 12, for the paper's settings and for ours."""
        seq = self._plan.ablation_seq
        for base in (VARIANTS["mpcache_paper"], VARIANTS["mpcache"]):
            variants = [
                Variant(str(layers), replace(base.plan, shared_layers=layers), base.functions)
                for layers in self._plan.shared_layers
            ]
            for variant, step in self._each("sharing", variants, seq):
                self._results.add("shared_layers", step.cost, method=base.name, layers=int(variant.name), seq=seq)

    def _gathering(self) -> None:
        """Table 2."""
        seq = self._plan.gathering_seq
        functions = gatherings(self._shape, seq)
        self._watcher.begin("gathering", len(functions))
        for name, (function, types) in functions.items():
            cost = measure_function(self._meter().parties, function, types, self._plan.repeats)
            self._results.add("gathering", cost, way=name, seq=seq)
            self._watcher.advance(name)

    def _necessity(self) -> None:
        """Table 8: a shape with learned positions and GELU, so other weights; the others' are forgotten first."""
        self._end_parties()
        meter = self._meter(shape=GPT2)
        self._watcher.begin("necessity", len(self._plan.necessity))
        for seq in self._plan.necessity:
            steps = meter.steps([VARIANTS["none"], VARIANTS["full"]], seq)
            for cached, step in zip((False, True), steps, strict=True):
                self._results.add("necessity", step.cost, cache=cached, seq=seq)
            self._watcher.advance(f"T = {seq}")
        self._end_parties()

    def _two_party(self) -> None:
        """Figure 18. Layers only: embedding and head are the same for all, and minutes long under Cheetah."""
        self._end_parties()
        seq = self._plan.two_party_seq
        variants = [VARIANTS[name] for name in self._plan.two_party_ways]
        self._watcher.begin("two_party", 1)
        steps = self._meter("cheetah").steps(variants, seq, layers_only=True)
        for variant, step in zip(variants, steps, strict=True):
            self._results.add_run(variant.name, "cheetah", seq, step.cost, layers_only=True)
        self._watcher.advance(f"T = {seq}")
        self._end_parties()

    def _quality(self) -> None:
        if self._judge is None:
            return
        self._watcher.begin("quality", 1)
        self._results.add_quality(self._judge(self._watcher.say))
        self._watcher.advance("all tasks")

    def _each(self, part: Part, variants: list[Variant], seq: int) -> Iterable[tuple[Variant, Step]]:
        self._watcher.begin(part, 1)
        yield from zip(variants, self._meter().steps(variants, seq), strict=True)
        self._watcher.advance(f"T = {seq}")

    def _meter(self, protocol: Protocol = "aby3", shape: ModelShape | None = None) -> Meter:
        if protocol not in self._meters:
            parties = self._running.enter_context(Parties(protocol))
            self._meters[protocol] = Meter(
                parties, shape or self._shape, repeats=self._plan.repeats, new_tokens=self._plan.new_tokens
            )
        return self._meters[protocol]

    def _end_parties(self) -> None:
        self._running.close()
        self._meters.clear()
