"""The whole measurement: which parts, in which order, on which parties, and what is kept when one fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec.structs import replace

from cloister.bench.mpc.cost import total
from cloister.bench.mpc.gathering import gatherings, measure_function
from cloister.bench.mpc.meter import Meter, Step
from cloister.bench.mpc.orders import ProtocolName
from cloister.bench.mpc.parties import Parties
from cloister.bench.mpc.plan import PARTS, Part
from cloister.bench.mpc.results import Results
from cloister.bench.mpc.rows import cost_row
from cloister.bench.mpc.shapes import GPT2
from cloister.bench.mpc.ways import WAYS, Way, ablation, hierarchies
from cloister.errors import CloisterError

if TYPE_CHECKING:
    from cloister.bench.mpc.quality import QualityRow
    from cloister.mpc.model.shape import ModelShape

Judge: TypeAlias = "Callable[[Callable[[str], None]], list[QualityRow]]"
PROFILED = ("full", "full_lean", "mpcache_paper", "mpcache")


class Watcher(Protocol):
    """Who is told how far it is."""

    def begin(self, part: Part, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


class Bench:
    """Measures the parts asked for. `save` is called whenever a part has ended, well or not."""

    def __init__(
        self,
        results: Results,
        shape: ModelShape,
        watcher: Watcher,
        save: Callable[[], None] = lambda: None,
        *,
        quality: Judge | None = None,
        necessity_shape: ModelShape | None = None,
    ) -> None:
        self._results = results
        self._plan = results.plan
        self._shape = shape
        self._necessity_shape = necessity_shape or GPT2
        self._watcher = watcher
        self._save = save
        self._quality = quality
        self._begun = monotonic()
        self._meters: dict[ProtocolName, Meter] = {}

    def run(self, parts: Collection[Part]) -> None:
        """A part that fails is noted with its reason, and the next one is measured."""
        with ExitStack() as self._running:
            for part in (part for part in PARTS if part in parts):
                if self._in_time(part):
                    self._run_part(part)
        self._save()

    def _in_time(self, what: str) -> bool:
        in_time = monotonic() - self._begun < self._plan.seconds
        if not in_time:
            self._results.left_out.append(what)
        return in_time

    def _run_part(self, part: Part) -> None:
        try:
            {
                "lengths": self._lengths,
                "composition": self._composition,
                "ablation": self._ablation,
                "gathering": self._gathering,
                "hierarchies": self._hierarchies,
                "sharing": self._sharing,
                "necessity": self._necessity,
                "two_party": self._two_party,
                "quality": self._judge_quality,
            }[part]()
        except (CloisterError, OSError) as failure:
            self._results.failed.append({"part": part, "reason": str(failure) or type(failure).__name__})
            self._end_parties()  # they may hold half a message
        finally:
            self._results.taken_s = monotonic() - self._begun
            self._save()

    def _lengths(self) -> None:
        """Figure 10."""
        plan, results = self._plan, self._results
        self._watcher.begin("lengths", len(plan.lengths))
        ways = [WAYS[name] for name in plan.ways]
        for seq in plan.lengths:
            if not self._in_time(f"lengths, T = {seq}"):
                continue
            for way, step in zip(ways, self._meter().steps(ways, seq), strict=True):
                results.add_run(way.name, "aby3", seq, step.cost, extrapolated=step.extrapolated)
                if seq == plan.operators_seq and way.name in PROFILED:
                    self._profile(way, seq, step)
            self._watcher.advance(f"T = {seq}")
            self._save()

    def _profile(self, way: Way, seq: int, step: Step) -> None:
        self._results.add_operators(way.name, "step", seq, step.cost)
        for part in step.parts:
            self._results.add_operators(way.name, part.name, seq, part.cost)

    def _composition(self) -> None:
        """A step composed of its kinds of programs against all its programs run one after another."""
        seq, way = self._plan.composition_seq, WAYS["mpcache"]
        self._watcher.begin("composition", 1)
        composed = cost_row(self._meter().step(way, seq).cost.whole)
        whole = cost_row(total(self._meter().whole_step(way, seq)).whole)
        off = {key: round(whole[key] / composed[key] - 1, 4) for key in composed if composed[key]}
        self._results.composition.append(
            {"method": way.name, "seq": seq, "composed": composed, "whole": whole, "deviation": off}
        )
        self._watcher.advance(f"{way.name}, T = {seq}")

    def _ablation(self) -> None:
        """Figure 11."""
        seq = self._plan.ablation_seq
        for way, step in self._each("ablation", ablation(), seq):
            row = {"step": way.name, "functions": way.functions, "seq": seq, **cost_row(step.cost.whole)}
            self._results.ablation.append(row)

    def _hierarchies(self) -> None:
        """Table 6."""
        seq = self._plan.ablation_seq
        for way, step in self._each("hierarchies", hierarchies(), seq):
            self._results.hierarchies.append({"levels": way.name, "seq": seq, **cost_row(step.cost.whole)})

    def _sharing(self) -> None:
        """Figure 12, for the paper's settings and for ours with selection at each layer."""
        seq, ours = self._plan.ablation_seq, WAYS["mpcache"]
        each = Way("mpcache", replace(ours.plan, selection="each"), ours.functions)
        for base in (WAYS["mpcache_paper"], each):
            ways = [
                Way(str(layers), replace(base.plan, shared_layers=layers), base.functions)
                for layers in self._plan.shared_layers
            ]
            for way, step in self._each("sharing", ways, seq):
                row = {"method": base.name, "layers": int(way.name), "seq": seq, **cost_row(step.cost.whole)}
                self._results.shared_layers.append(row)

    def _gathering(self) -> None:
        """Table 2."""
        seq = self._plan.gathering_seq
        functions = gatherings(self._shape, seq)
        self._watcher.begin("gathering", len(functions))
        for name, (function, types) in functions.items():
            cost = measure_function(self._meter().parties, function, types, self._plan.repeats)
            self._results.gathering.append({"way": name, "seq": seq, **cost_row(cost.whole)})
            self._watcher.advance(name)

    def _necessity(self) -> None:
        """Table 8: a shape with learned positions and GELU, so other weights; the others' are forgotten first."""
        self._end_parties()
        meter = self._meter(shape=self._necessity_shape)
        self._watcher.begin("necessity", len(self._plan.necessity))
        for seq in self._plan.necessity:
            steps = meter.steps([WAYS["none"], WAYS["full"]], seq)
            for cached, step in zip((False, True), steps, strict=True):
                self._results.necessity.append({"cache": cached, "seq": seq, **cost_row(step.cost.whole)})
            self._watcher.advance(f"T = {seq}")
        self._end_parties()

    def _two_party(self) -> None:
        """Figure 18. Layers only: embedding and head are the same for all, and minutes long under Cheetah."""
        self._end_parties()
        seq = self._plan.two_party_seq
        ways = [WAYS[name] for name in self._plan.two_party_ways]
        self._watcher.begin("two_party", 1)
        steps = self._meter("cheetah").steps(ways, seq, layers_only=True)
        for way, step in zip(ways, steps, strict=True):
            self._results.add_run(way.name, "cheetah", seq, step.cost, layers_only=True)
        self._watcher.advance(f"T = {seq}")
        self._end_parties()

    def _judge_quality(self) -> None:
        if self._quality is None:
            return
        self._watcher.begin("quality", 1)
        rows = self._quality(self._watcher.say)
        self._results.add_quality(rows)
        self._watcher.advance("all tasks")

    def _each(self, part: Part, ways: list[Way], seq: int) -> Iterable[tuple[Way, Step]]:
        self._watcher.begin(part, 1)
        yield from zip(ways, self._meter().steps(ways, seq), strict=True)
        self._watcher.advance(f"T = {seq}")

    def _meter(self, protocol: ProtocolName = "aby3", shape: ModelShape | None = None) -> Meter:
        if protocol not in self._meters:
            parties = self._running.enter_context(Parties(protocol))
            self._meters[protocol] = Meter(
                parties, shape or self._shape, repeats=self._plan.repeats, new_tokens=self._plan.new_tokens
            )
        return self._meters[protocol]

    def _end_parties(self) -> None:
        self._running.close()
        self._meters.clear()
