"""How many tokens of a prompt go where: arithmetic on public numbers, settled before anything is traced."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """All in tokens unless named otherwise. `clusters`, `candidates`, `counts`: coarse level first."""

    window: int
    first: int
    always: int  # of the middle, read at every step
    body: int  # of the middle, selected from
    last: int
    granularity: int
    middle: slice
    clusters: tuple[int, ...]  # tokens per cluster
    candidates: tuple[int, ...]  # clusters that each level chooses from
    counts: tuple[int, ...]  # clusters that each level passes on

    @property
    def evicts(self) -> bool:
        """Whether a look at the prompt is needed: something is dropped, or pinned by importance."""
        return self.always > 0 or self.body < self.middle_tokens

    @property
    def middle_tokens(self) -> int:
        return int(self.middle.stop) - int(self.middle.start)

    @property
    def runs(self) -> int:
        return self.middle_tokens // self.granularity

    @property
    def always_runs(self) -> int:
        return self.always // self.granularity

    @property
    def kept_runs(self) -> int:
        return self.body // self.granularity

    @property
    def needs_order(self) -> bool:
        """Runs come out of the eviction in any order: only clusters made of several of them must be adjacent again."""
        return self.granularity < self.clusters[0]

    @property
    def read(self) -> int:
        """Tokens of the prompt read at every step."""
        return self.first + self.always + self.counts[-1] * self.clusters[-1] + self.last


def sizes_of(
    prompt_tokens: int,
    *,
    budget: float,
    at_least: int,
    window: float,
    static_keep: float,
    granularity: int,
    always: float,
    pinned_first: int,
    pinned_last: int,
    clusters: tuple[int, ...],
    ratios: tuple[float, ...],
) -> Sizes | None:
    """The sizes for a prompt; None where it is too short for anything to be worth selecting."""
    coarse, fine = clusters[0], clusters[-1]
    read = max(round(budget * prompt_tokens), at_least)
    middle_tokens = (prompt_tokens - pinned_first - pinned_last) // granularity * granularity
    free = read - pinned_first - pinned_last
    always_tokens = round(free * always / granularity) * granularity
    count = (free - always_tokens) // fine
    unit = max(coarse, granularity)
    body = min(round(static_keep * prompt_tokens), middle_tokens - always_tokens) // unit * unit
    if count < 1 or count * fine >= body:
        return None
    counts, candidates, available = [], [], body
    for size, ratio in zip(clusters, (*ratios, None), strict=True):
        candidates.append(available // size)
        if ratio is None:
            counts.append(count)
        else:
            counts.append(min(max(round(candidates[-1] * ratio), -(-count * fine // size)), candidates[-1]))
            available = counts[-1] * size
    start = prompt_tokens - pinned_last - middle_tokens
    return Sizes(
        window=max(1, min(prompt_tokens, round(window * prompt_tokens))),
        first=start,
        always=always_tokens,
        body=body,
        last=pinned_last,
        granularity=granularity,
        middle=slice(start, start + middle_tokens),
        clusters=clusters,
        candidates=tuple(candidates),
        counts=tuple(counts),
    )
