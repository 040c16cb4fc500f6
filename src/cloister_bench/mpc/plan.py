"""What is measured, and how often. Baselines run on the tuned functions, so that only the cache differs; `full_naive`
and `full_lean` are the full cache on the other two."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from cloister_mpc.cache.plan import CachePlan

StaticName = Literal["streaming", "snapkv", "h2o", "tova"]
BaselineName = Literal["longcache", "infllm", StaticName]
STATIC: tuple[StaticName, ...] = get_args(StaticName)


class BaselinePlan(CachePlan, frozen=True, kw_only=True):
    method: BaselineName  # type: ignore[assignment]  # a party decodes CachePlan, and so refuses these names


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    plan: CachePlan
    functions: Literal["lean", "tuned", "naive"] = "tuned"


BASELINES: tuple[BaselineName, ...] = ("longcache", "infllm", "h2o", "snapkv", "tova", "streaming")


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("full_naive", CachePlan(method="full"), "naive"),
        Variant("full", CachePlan(method="full")),
        Variant("full_lean", CachePlan(method="full"), "lean"),
        *(Variant(name, BaselinePlan(method=name)) for name in BASELINES),
        Variant("mpcache", CachePlan(), "lean"),
    )
}


Part = Literal["lengths", "composition", "quality"]
PARTS: tuple[Part, ...] = get_args(Part)
QualityMethod: TypeAlias = Literal["mpcache"] | BaselineName


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and messages need one run, seconds `repeats`. What has not begun by `seconds` is reported as left out."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    ways: tuple[str, ...] = tuple(VARIANTS)
    repeats: int = 3
    operators_seq: int = 1024
    composition_seq: int = 256
    new_tokens: int = 32
    parts: tuple[Part, ...] = PARTS
    seconds: float = 30 * 60.0
    quality_samples: int = 4
    quality_budgets: tuple[float, ...] = (0.05, 0.1, 0.2)
    quality_methods: tuple[QualityMethod, ...] = ("mpcache", *BASELINES)
    quick: bool = False


FULL = Plan()
QUICK = Plan(  # to see that all works, and about how it stands
    lengths=(1024, 256),
    ways=("full_naive", "full", "full_lean", "snapkv", "mpcache"),
    repeats=1,
    seconds=240.0,
    quality_samples=1,
    quality_budgets=(0.1,),
    quality_methods=("mpcache", "snapkv", "streaming"),
    quick=True,
)
