"""What the next step computes: decoding first, then chunks of prefill, fair among tenants. While several tenants are
active, steps are short (pace.Pace). The tenant least served is next (ServiceMeter), never by prefix match or prompt
length. When blocks run out, the youngest sequence of the tenant most served is preempted: it keeps its tokens and is
recomputed. A sequence that finds its link full waits for a later step. Why every sequence ends: it enters with blocks
for all its tokens, so it yields a token before it can be preempted because its own blocks run out, and one that
preempts another yields one too. A tenant that displaces others enters at once, stays within an equal share, and
displaces only tenants above theirs that were served more: two cannot displace each other in turn. A full link has given
some sequence a row. Any single sequence fits the pool."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cloister.compute.layout import Chunk, Wanted
from cloister.config import EngineSettings
from cloister.engine.drafts import propose
from cloister.engine.reuse import PrefixReuse
from cloister.engine.sequence import HeldBlocks, Sequence
from cloister.engine.tenant_queues import TenantQueues
from cloister.fairness import ActiveTenants, Pace, ServiceMeter
from cloister.prefix.base import BlockPool, PrefixCache


@dataclass(frozen=True, slots=True)
class Work:
    """`drafts`: guesses at the chunk's end, whose rows are wanted, too."""

    sequence: Sequence
    chunk: Chunk
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.chunk.start + len(self.chunk.tokens)

    @property
    def asked_rows(self) -> int:
        """Rows that query the vault over the link, once per layer: those of generated tokens."""
        layout = self.chunk.layout
        return max(0, self.end - max(self.chunk.start, layout.prompt)) if layout.remote else 0

    @property
    def rows(self) -> int:
        if self.chunk.wanted is Wanted.ALL:
            return len(self.chunk.tokens)
        return 1 if self.chunk.wanted is Wanted.LAST else 0


class LinkRows:
    """A link's memory holds `most` queries. Rows of a public span make no query."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[int] = Counter()

    def take(self, work: Iterable[Work]) -> None:
        for part in work:
            if part.sequence.link is not None:
                self._taken[part.sequence.link] += part.asked_rows

    def fitting(self, sequence: Sequence, chunk: int) -> int:
        if sequence.link is None:
            return chunk
        left = self._most - self._taken[sequence.link]
        return min(chunk, max(0, sequence.layout.prompt - sequence.computed) + left)


def within_links(decoding: list[Sequence], most: int) -> list[Sequence]:
    """At most `most` per link: those that waited longest, the oldest among equals."""
    rows: Counter[int | None] = Counter()
    chosen: set[tuple[int, int]] = set()
    for sequence in sorted(decoding, key=lambda s: (s.last_step, s.arrival)):
        rows[sequence.link] += 1
        if sequence.link is None or rows[sequence.link] <= most:
            chosen.add(sequence.id)
    return [sequence for sequence in decoding if sequence.id in chosen]


MAX_FORCED_ROWS = 64  # of logits in one step: keeps the buffer small

# at most one part in this many of the pool stays free when a sequence enters, for the running ones to grow into
_HEADROOM = 16


class Scheduler:
    def __init__(
        self,
        settings: EngineSettings,
        pool: BlockPool,
        block_tokens: int,
        prefix: PrefixCache,
        link_rows: int,
        pace: Pace,
        drafts: int = 0,
    ) -> None:
        self._most = settings.chunk_tokens
        self._pace = pace
        self._active = ActiveTenants()
        self._max_running = settings.max_running
        self._pool = pool
        self._prefix = prefix
        self.reuse = PrefixReuse(prefix, block_tokens)
        self._page = block_tokens
        self._link_rows, self._most_drafts = link_rows, drafts
        self.meter = ServiceMeter()
        self._step = 0
        self.waiting = TenantQueues(settings.max_waiting, settings.max_waiting_per_tenant)
        self.running: dict[tuple[int, int], Sequence] = {}
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, or raise QueueFull. Lower tiers start to read its prompt's pages."""
        self.waiting.enter(sequence)
        self.reuse.expect(sequence)
        self.meter.arrive(sequence.tenant)
        self._active.arrive(sequence.tenant)

    def remove(self, sequence: Sequence) -> None:
        if self.running.pop(sequence.id, None) is None:
            self.waiting.leave(sequence)
        self._vacate(sequence)
        sequence.forget()
        self.meter.leave(sequence.tenant)
        self._active.leave(sequence.tenant)
        self.waiting.note_departure()

    def schedule(self, most: int | None = None) -> list[Work]:
        self._step += 1
        if self.waiting:
            self._displace()
        budget, of_prompts = self._sizes(most)
        room = self._most if most is None else most
        decoding = self._grown(self._turn_to_decode(budget))
        plan = [self._work(sequence, 1, Wanted.LAST) for sequence in decoding]
        links = LinkRows(self._link_rows)
        links.take(plan)
        plan += self._prefill(min(budget - len(plan), of_prompts), room - len(plan), links)
        return self._with_drafts(plan, room)

    @property
    def drafts(self) -> tuple[int, ...]:
        """For a sequence that decodes alone: in a step with others, rows for guesses would cost more than they give."""
        if not self._most_drafts or len(self.running) != 1 or self.waiting:
            return ()
        [sequence] = self.running.values()
        return propose(sequence.tokens, min(self._most_drafts, sequence.room_for_drafts))

    def _with_drafts(self, plan: list[Work], room: int) -> list[Work]:
        if not self._most_drafts or len(plan) != 1 or not (drafts := self.drafts[: max(room - 1, 0)]):
            return plan
        [work] = plan
        sequence, end = work.sequence, work.end + len(drafts)
        need = sequence.layout.blocks(end) - len(sequence.blocks.all)
        if need > 0:
            own = self._pool.allocate(need) if self._prefix.make_room(need + self._private_doubles()) else None
            if own is None:
                return plan
            sequence.blocks.all += own
        blocks = sequence.blocks.all[: sequence.layout.blocks(end)]
        chunk = replace(work.chunk, tokens=[*work.chunk.tokens, *drafts], blocks=blocks, wanted=Wanted.ALL)
        return [replace(work, chunk=chunk, drafts=drafts)]

    def kept(self, work: Work, drafts: int) -> None:
        """How many of the step's guesses came true."""
        work.sequence.computed = work.end - len(work.drafts) + drafts
        self.meter.charge(work.sequence.tenant, outputs=drafts)

    def computed(self, work: Work) -> None:
        work.sequence.computed = work.end
        if work.chunk.start < work.sequence.layout.prompt:
            self.reuse.keep(work.sequence)

    def spare(self, most: int | None) -> int:
        """Tokens in a step without a request: one page, since a request that comes meanwhile waits for the step."""
        return min(self._sizes(most)[1], self._page)

    def _sizes(self, most: int | None) -> tuple[int, int]:
        if most is None and not self._active.several:
            return self._most, self._pace.long
        budget = min(self._most, max(self._pace.short, self.meter.active) if most is None else most)
        return budget, budget

    def _turn_to_decode(self, budget: int) -> list[Sequence]:
        """The sequences that decode; the least served if the budget is too small for all. While anyone needs prefill, a
        quarter of the budget is for that (with a budget under four: every other step), or the equal shares of the
        tenants that need nothing else."""
        prefilling = {s.payer for s in self.running.values() if s.remaining > 1 or s.owes_prompt_logprobs}
        prefilling |= self.waiting.tenants
        ready = [s for s in self.running.values() if s.remaining == 1 and not s.owes_prompt_logprobs]
        ready = within_links(ready, self._link_rows)
        if prefilling:
            others = len(prefilling - {s.payer for s in ready})
            budget -= max(budget // 4, budget * others // max(self.meter.active, 1)) or self._step % 2
        if len(ready) > budget:
            ready.sort(key=lambda s: (self.meter.served(s.payer), s.last_step, s.arrival))
            del ready[budget:]
        return ready

    def _grown(self, decoding: list[Sequence]) -> list[Sequence]:
        while True:
            short = [s for s in decoding if len(s.blocks.all) < s.layout.blocks(s.computed + 1)]
            if self._prefix.make_room(len(short) + self._private_doubles()):
                break
            self._preempt(self._youngest_of_most_served(self.running.values()))
            decoding = [s for s in decoding if s.id in self.running]
        for sequence, block in zip(short, self._pool.allocate(len(short)) or (), strict=True):
            sequence.blocks.all.append(block)
        return decoding

    def _prefill(self, budget: int, room: int, links: LinkRows) -> list[Work]:
        """The least served tenant first. The short prompt of a tenant that has just arrived is not cut into chunks."""
        plan: list[Work] = []
        forced_rows = MAX_FORCED_ROWS
        begun: dict[str, list[Sequence]] = {}
        for sequence in sorted(self.running.values(), key=lambda s: -s.arrival):
            if sequence.remaining > 1 or sequence.owes_prompt_logprobs:
                begun.setdefault(sequence.payer, []).append(sequence)
        admitting = True
        while budget > 0:
            turns = set(begun) | self.waiting.tenants if admitting else set(begun)
            if not turns:
                break
            tenant = min(turns, key=lambda t: (self.meter.served(t), self._next_of(t, begun).arrival))
            if tenant in begun:
                sequence = begun[tenant].pop()
                if not begun[tenant]:
                    del begun[tenant]
            elif self._admit(self.waiting.head(tenant)):
                sequence = next(reversed(self.running.values()))
            else:
                # Wait for the least served even if others would fit: otherwise small requests starve big ones.
                admitting = False
                continue
            most = min(sequence.remaining, room) if sequence.remaining <= self.meter.uncut(sequence.tenant) else budget
            chunk, wanted = self._chunk(sequence, links.fitting(sequence, most), forced_rows)
            if chunk:
                plan.append(self._work(sequence, chunk, wanted))
                links.take(plan[-1:])
                budget, room = budget - chunk, room - chunk
                forced_rows -= chunk if wanted is Wanted.ALL else 0
        return plan

    def _next_of(self, tenant: str, begun: dict[str, list[Sequence]]) -> Sequence:
        return begun[tenant][-1] if tenant in begun else self.waiting.head(tenant)

    def _chunk(self, sequence: Sequence, budget: int, forced_rows: int) -> tuple[int, Wanted]:
        chunk = min(sequence.remaining, budget)
        if not sequence.owes_prompt_logprobs:
            return chunk, Wanted.LAST
        reported = len(sequence.output.prompt_logprobs)
        if sequence.computed < reported:  # recomputed after a preemption: these rows were seen
            return min(chunk, reported - sequence.computed), Wanted.NONE
        return min(chunk, forced_rows), Wanted.ALL

    def _work(self, sequence: Sequence, chunk: int, wanted: Wanted) -> Work:
        start, end = sequence.computed, sequence.computed + chunk
        whole = end == len(sequence.tokens)
        samples = whole and sequence.may_grow
        if wanted is Wanted.LAST and not (samples or (whole and sequence.params.embed)):
            wanted = Wanted.NONE
        self._charge(sequence, end, samples)
        sequence.last_step = self._step
        blocks, needed = sequence.blocks.all, sequence.layout.blocks(end)
        blocks = blocks if len(blocks) == needed else blocks[:needed]
        return Work(sequence, Chunk(sequence.tokens[start:end], start, blocks, sequence.layout, wanted), samples)

    def _charge(self, sequence: Sequence, end: int, samples: bool) -> None:
        """Charge each prompt token once: recomputing it or finding it cached makes no difference to turns."""
        reached = min(end, sequence.prompt_length)
        inputs = max(0, reached - sequence.charged)
        sequence.charged += inputs
        self.meter.charge(sequence.tenant, inputs=inputs, outputs=int(samples))

    def _admit(self, sequence: Sequence) -> bool:
        if len(self.running) >= self._max_running:
            return False
        found = self.reuse.find(sequence)
        need = _blocks_needed(sequence) - len(found.blocks)
        sequence.blocks = HeldBlocks(list(found.blocks), len(found.blocks), found.public)
        room = need + self._headroom() + self._private_doubles(sequence)
        own = self._pool.allocate(need) if self._prefix.make_room(room) else None
        if own is None:
            self._vacate(sequence)
            return False
        self.waiting.leave(sequence)
        sequence.blocks.all += own
        self.reuse.begin(sequence, found)
        self.running[sequence.id] = sequence
        return True

    @property
    def blocks_held(self) -> int:
        """Blocks of running sequences. The others in use are the prefix cache's, which gives them up on demand."""
        return len({block for sequence in self.running.values() for block in sequence.blocks.all})

    def _private_doubles(self, newcomer: Sequence | None = None) -> int:
        """How many more blocks would be in use if no two sequences shared private blocks. Admission counts these too.
        Otherwise a tenant that sends one prompt twice would leave others more room than one that sends two prompts, and
        the others could notice. Public blocks count once."""
        running = [*self.running.values(), *([] if newcomer is None else [newcomer])]
        if all(sequence.blocks.lent == sequence.blocks.public for sequence in running):
            return 0
        private = [block for sequence in running for block in sequence.blocks.all[sequence.blocks.public :]]
        return len(private) - len(set(private))

    def _displace(self) -> None:
        """Admit the least served waiting tenant: preempt tenants that were served more and exceed an equal share."""
        tenant = min(self.waiting.tenants, key=lambda t: (self.meter.served(t), self.waiting.head(t).arrival))
        need = _blocks_needed(self.waiting.head(tenant))
        slot_share = max(1, self._max_running // self.meter.active)
        block_share = self._pool.total // self.meter.active
        held = self._running_by_tenant()
        mine = held.pop(tenant, [])
        if len(mine) >= slot_share or _blocks_of(mine) + need > block_share:
            return
        served = self.meter.served
        held = {other: sequences for other, sequences in held.items() if served(other) > served(tenant)}
        while held:
            no_slot = len(self.running) >= self._max_running
            no_blocks = not self._prefix.make_room(need + self._headroom() + self._private_doubles())
            greedy = {
                other: sequences
                for other, sequences in held.items()
                if (no_slot and len(sequences) > slot_share) or (no_blocks and _blocks_of(sequences) > block_share)
            }
            if not (no_slot or no_blocks):
                self._admit(self.waiting.head(tenant))  # now, before those displaced can come back
                return
            if not greedy:
                return
            victim = self._youngest_of_most_served(s for sequences in greedy.values() for s in sequences)
            held[victim.payer].remove(victim)
            self._preempt(victim)

    def _running_by_tenant(self) -> dict[str, list[Sequence]]:
        by_tenant: dict[str, list[Sequence]] = {}
        for sequence in self.running.values():
            by_tenant.setdefault(sequence.payer, []).append(sequence)
        return by_tenant

    def _youngest_of_most_served(self, sequences: Iterable[Sequence]) -> Sequence:
        candidates = list(sequences)
        tenant = self.meter.most_served({s.payer for s in candidates})
        return max((s for s in candidates if s.payer == tenant), key=lambda s: s.arrival)

    def _preempt(self, sequence: Sequence) -> None:
        del self.running[sequence.id]
        self._vacate(sequence)
        self.waiting.return_first(sequence)
        self.preemptions += 1

    def _vacate(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks.all)
        sequence.blocks = HeldBlocks()
        sequence.computed = 0

    def _headroom(self) -> int:
        return min(len(self.running), self._pool.total // _HEADROOM)


def _blocks_needed(sequence: Sequence) -> int:
    return sequence.layout.blocks(len(sequence.tokens))


def _blocks_of(sequences: Iterable[Sequence]) -> int:
    return sum(len(sequence.blocks.all) for sequence in sequences)
