"""The whole measurement: which parts, in which order, on which parties, and what is kept when one fails."""

from collections.abc import Callable, Collection
from contextlib import ExitStack

from cloister_bench.mpc.cost import total
from cloister_bench.mpc.meter import Meter
from cloister_bench.mpc.parties import Parties
from cloister_bench.mpc.plan import PARTS, VARIANTS, Part
from cloister_bench.mpc.quality import QualityRow
from cloister_bench.mpc.results import Results, cost_row
from cloister_bench.suite.measurement import Measurement, Watcher
from cloister_mpc.model.shape import ModelShape

Judge = Callable[[Callable[[str], None]], list[QualityRow]]
PROFILED = ("full", "full_lean", "mpcache")


class Bench(Measurement[Results]):
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
        self._measuring: Meter | None = None

    def run(self, parts: Collection[Part]) -> None:
        measures: dict[Part, Callable[[], None]] = {
            "lengths": self._lengths,
            "composition": self._composition,
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
        plan, results = self._plan, self._results
        self._watcher.begin("lengths", len(plan.lengths))
        variants = [VARIANTS[name] for name in plan.ways]
        for seq in plan.lengths:
            if not self._in_time(f"lengths, T = {seq}"):
                continue
            for variant, step in zip(variants, self._meter().steps(variants, seq), strict=True):
                results.add_run(variant.name, seq, step.cost)
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

    def _quality(self) -> None:
        if self._judge is None:
            return
        self._watcher.begin("quality", 1)
        self._results.add_quality(self._judge(self._watcher.say))
        self._watcher.advance("all tasks")

    def _meter(self) -> Meter:
        if self._measuring is None:
            parties = self._running.enter_context(Parties())
            plan = self._plan
            self._measuring = Meter(parties, self._shape, repeats=plan.repeats, new_tokens=plan.new_tokens)
        return self._measuring

    def _end_parties(self) -> None:
        self._running.close()
        self._measuring = None
