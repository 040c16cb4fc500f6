"""Plans of the baselines: settings as MPCache's, under names that only the bench knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from cloister.mpc.cache.plan import CachePlan

if TYPE_CHECKING:
    from cloister.mpc.cache.base import Method

StaticName = Literal["streaming", "snapkv", "h2o", "tova"]
BaselineName = Literal["none", "full_naive", "longcache", "infllm", StaticName]
STATIC: tuple[StaticName, ...] = get_args(StaticName)


class BaselinePlan(CachePlan, frozen=True, kw_only=True):
    """`full_naive` and `none` read the whole cache; without a cache (`none`) the prefill runs again for every token."""

    method: BaselineName  # type: ignore[assignment]  # a party decodes CachePlan, and so refuses these names

    def make_method(self, prompt_tokens: int, new_tokens: int) -> Method:
        from cloister.bench.mpc.baselines.static import static_method

        read = self.tokens_read(prompt_tokens)
        if read == prompt_tokens or self.method in ("none", "full_naive"):
            return self.full(new_tokens)
        if self.method in ("longcache", "infllm"):
            return self._selecting(prompt_tokens, new_tokens, read)
        sinks = min(self.pinned_first, read - 1)
        return static_method(self.method, prompt_tokens, new_tokens, read, self.ranking == "shuffle", sinks)

    def _selecting(self, prompt_tokens: int, new_tokens: int, read: int) -> Method:
        from cloister.bench.mpc.baselines.selecting import InfLLM, LongCache

        kind, block = (LongCache, 1) if self.method == "longcache" else (InfLLM, self.clusters[0])
        middle = (prompt_tokens - self.pinned_first - self.pinned_last) // block * block
        count = (read - (prompt_tokens - middle)) // block
        if count < 1:
            return self.full(new_tokens)
        return kind(
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            first=prompt_tokens - middle - self.pinned_last,
            last=self.pinned_last,
            block=block,
            count=count,
            shuffled=self.ranking == "shuffle",
            by_scores=self.gather == "scores",
            window=max(1, round(self.window * prompt_tokens)),
            name=self.method,
        )
