"""One node in virtual time. Its cores go in turns to the service, which decodes for all and reads prompts without a
vault, and to vaults that read prompts (controller/core_lease.py). How much a turn computes follows fairness.Pace, and
which rows it computes engine/scheduler.py. While no prompt is read, equal steps are computed at once."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import Literal

from cloister.controller.core_lease import PIECE_TOKENS, SHORT_STEPS
from cloister.controller.sessions import most_of_one
from cloister.controller.vaults import MOST_MADE_AT_ONCE
from cloister.fairness import CREDIT, LEAST_SHORT_S, LINGER_S, LONG_S
from cloister.fairness import SHORT_STEPS as SERVICE_SHORT_STEPS
from cloister.levels import LevelName
from cloister_bench.capacity.machine import LevelProfile, Machine, reads_in_vault

_STRETCH = 64  # steps computed at once, at most: contexts grow meanwhile


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way. `came`: when its user asked first; `at`: when this node got it."""

    number: int
    came: float
    prompt: int
    output: int
    level: LevelName
    at: float = 0.0
    tries: int = 0
    left: int = 0  # of its prompt
    uncut: bool = True
    ends: float = 0.0  # the count of steps at which its last token is made
    ready: float = 0.0  # when its vault is sealed
    first: float | None = None


Ended = Callable[[Job, float], None]
Refused = Callable[[Job, Literal["refused", "too_long"]], None]


class Level:
    """A level's profile with the sizes that follow from it, as the node's Pace learns them."""

    def __init__(self, name: LevelName, profile: LevelProfile, machine: Machine) -> None:
        self.name, self.vault = name, reads_in_vault(name)
        self.first_s, self.piece_s, self.token_s = profile.first_s, profile.piece_s, profile.token_s
        self.context_s, self.request_s, self.vault_s = profile.context_s, profile.request_s, profile.vault_s
        self.max_context = profile.max_context
        self.steps = [0.0, *(profile.step_s(rows) for rows in range(1, machine.limits.max_running + 1))]
        one, most = self.steps[1], machine.limits.chunk_tokens
        steps, counted = (SHORT_STEPS, self.piece_s) if self.vault else (SERVICE_SHORT_STEPS, one)
        self.short = self._within(max(LEAST_SHORT_S, steps * one), counted, most)
        self.long = max(self.short, self._within(LONG_S, counted, most))

    def _within(self, seconds: float, piece_s: float, most: int) -> int:
        return int(min(max((seconds - piece_s) / self.token_s, 1), most))


@dataclass(slots=True)
class Counts:
    busy_s: float = 0.0
    vaults: int = 0
    waited_for_vaults_s: float = 0.0
    most_vaults: int = 0
    most_tokens: int = 0
    refused: int = 0
    redeemed: int = 0


@dataclass
class Node:
    """`tokens`: users pay with anonymous tokens, and have one payer's share together. `verified`: the share of answers
    that vaults compute again. `ended`, `refused` get each job once."""

    machine: Machine
    levels: dict[LevelName, Level]
    ended: Ended
    refused: Refused
    tokens: bool = True
    verified: float = 0.0
    clock: float = 0.0
    coarse: int = 64
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        limits = self.machine.limits
        self._most_vaults = most_of_one(limits.max_vaults) if self.tokens else limits.max_vaults
        self._most_waiting = limits.max_waiting // 2 if self.tokens else limits.max_waiting
        self.clear()

    def clear(self) -> list[Job]:
        """As after a start. Returns what was under way."""
        begun = getattr(self, "_decoding", None)
        lost = [] if begun is None else [job for *_, job in begun]
        lost += [*self._vault_reads, *self._reads, *self._waiting, *self._sealing] if begun is not None else []
        self._waiting: deque[Job] = deque()  # for a vault's or a sequence's place
        self._sealing: list[Job] = []
        self._vault_reads: deque[Job] = deque()
        self._reads: deque[Job] = deque()
        self._decoding: list[tuple[float, int, Job]] = []
        self._rows: dict[LevelName, int] = dict.fromkeys(self.levels, 0)
        self._made = self._context = self._owed_s = 0.0
        self._vaults = self._held = self._pool = 0
        self._left_at = -LINGER_S
        self._spares = [self.clock] * self.machine.limits.spare_vaults
        self._gate_at = 0.0
        return lost

    @property
    def present(self) -> int:
        return len(self._waiting) + len(self._sealing) + len(self._vault_reads) + len(self._reads) + len(self._decoding)

    def take(self, job: Job, now: float) -> None:
        """A request arrives; the node was advanced to `now`. Its token is redeemed first, one after the other."""
        if not self.present:
            self.clock = max(self.clock, now)
        job.at, job.left, job.uncut, job.first = now, job.prompt, True, None
        if self.tokens:
            self._gate_at = max(self._gate_at, now) + 1 / self.machine.redeemed_per_s
            self.counts.redeemed += 1
        limits = self.machine.limits
        most = self.levels[job.level].max_context or limits.max_context
        too_long = job.prompt + job.output > min(most, limits.max_context, limits.kv_tokens)
        if too_long or len(self._waiting) >= self._most_waiting:
            self.counts.refused += 1
            self.refused(job, "too_long" if too_long else "refused")
            return
        job.ready = max(now, self._gate_at)
        self._waiting.append(job)
        self._admit(now)

    def advance(self, until: float) -> None:
        """Compute what begins before `until`. The turn under way then is finished: none is cut short."""
        while self.clock < until and self.present:
            self._seal()
            reading = bool(self._vault_reads or self._reads)
            if not reading and not self._decoding:
                self.clock = min(until, max(self.clock, min(job.ready for job in self._sealing)))
                if self.clock < until:
                    self._seal()
                continue
            begun = self.clock
            due = min([until, *(job.ready for job in self._sealing)]) if self._sealing else until
            if reading:
                self._turn(due)
            else:
                self._decode_until(due)
            self.counts.busy_s += self.clock - begun

    def _admit(self, now: float) -> None:
        """First come, first served, while there is a place: a vault, or a sequence and room for keys and values."""
        limits = self.machine.limits
        while self._waiting:
            job = self._waiting[0]
            level = self.levels[job.level]
            running = len(self._reads) + len(self._decoding)
            if level.vault:
                if self._vaults >= self._most_vaults:
                    return
                self._vaults += 1
                self._fresh_vault(job, now)
                self._owed_s += level.vault_s
            elif running >= limits.max_running or self._pool + job.prompt + job.output > limits.kv_tokens:
                return
            else:
                self._pool += job.prompt + job.output
            self._waiting.popleft()
            self._owed_s += level.request_s
            self._held += job.prompt + job.output
            self.counts.most_vaults = max(self.counts.most_vaults, self._vaults)
            self.counts.most_tokens = max(self.counts.most_tokens, self._held)
            if job.ready > now:
                self._sealing.append(job)
            else:
                (self._vault_reads if level.vault else self._reads).append(job)

    def _fresh_vault(self, job: Job, now: float) -> None:
        """The spare that is sealed first; another is forked for it, a few at a time and slower on busy cores."""
        start_s = self.machine.vault_start_s * (1 + (self.present > 1))
        sealed = heappop(self._spares) if self._spares else now + start_s
        making = sorted(ready for ready in self._spares if ready > now)[-MOST_MADE_AT_ONCE:]
        begin = making[0] if len(making) == MOST_MADE_AT_ONCE else now
        if self.machine.limits.spare_vaults:
            heappush(self._spares, begin + start_s)
        self.counts.vaults += 1
        self.counts.waited_for_vaults_s += max(0.0, sealed - now)
        job.ready = max(job.ready, sealed)

    def _seal(self) -> None:
        if not self._sealing:
            return
        for job in [job for job in self._sealing if job.ready <= self.clock]:
            self._sealing.remove(job)
            (self._vault_reads if self.levels[job.level].vault else self._reads).append(job)

    @property
    def _several(self) -> bool:
        """Whether turns are short: several tenants, of which one may have left a few seconds ago."""
        return self.present > 1 or self.clock - self._left_at < LINGER_S

    def _turn(self, until: float) -> None:
        """A step of the service, if it has work, and then vaults for a round. Equal turns are taken at once."""
        several, reads, in_vaults = self._several, list[tuple[Job, int]](), list[tuple[Job, int]]()
        budget, decoding = self._budget(several), len(self._decoding)
        rows = min(decoding, budget)
        if self._reads:
            waiting = len(self._reads) + len(self._waiting)
            kept = 0 if self.tokens else budget * waiting // self.present
            rows = min(rows, max(1, budget - max(budget // 4, kept, 1)))
            reads = self._pieces(max(1, budget - rows) if several else self.levels[self._reads[0].level].long)
        seconds = self._step_s(rows) if rows else max((self.levels[job.level].piece_s for job, _ in reads), default=0.0)
        seconds += sum(tokens * self.levels[job.level].token_s for job, tokens in reads)
        if self._vault_reads:
            in_vaults, of_vaults = self._round(several)
            seconds += of_vaults
        turns = min(self._equal_turns(self._reads, reads), self._equal_turns(self._vault_reads, in_vaults))
        if turns > 1 and rows:
            turns = min(turns, (self._decoding[0][0] - self._made) * decoding / rows)
        turns = int(max(1, min(turns, (until - self.clock) / seconds)))
        if self._rotates(self._reads, reads) and self._rotates(self._vault_reads, in_vaults):
            turns = 1
        in_vaults, turns = self._rotated(self._vault_reads, in_vaults, turns)
        reads, turns = self._rotated(self._reads, reads, turns)
        self._pass(seconds * turns)
        self._made += turns * rows / decoding if rows else 0.0
        self._context += rows * turns
        self._finish()
        self._read(self._reads, reads)
        self._read(self._vault_reads, in_vaults)

    def _equal_turns(self, queue: deque[Job], pieces: list[tuple[Job, int]]) -> float:
        """How many turns give these pieces, or where prompts rotate as large ones to all, and finish no prompt."""
        if not pieces:
            return self.coarse
        if not self._rotates(queue, pieces):
            return min(self.coarse, *((job.left - 1) // tokens for job, tokens in pieces))
        if any(job.uncut and job.left <= CREDIT for job in queue):
            return 1
        return min((job.left - 1) // pieces[0][1] for job in queue) * len(queue) / len(pieces)

    def _rotates(self, queue: deque[Job], pieces: list[tuple[Job, int]]) -> bool:
        return len(queue) > len(pieces) and (queue is self._vault_reads or not self.tokens)

    def _rotated(
        self, queue: deque[Job], pieces: list[tuple[Job, int]], turns: int
    ) -> tuple[list[tuple[Job, int]], int]:
        """The pieces of whole rotations, and their turns, if several turns are taken at once."""
        if turns == 1 or not pieces or not self._rotates(queue, pieces):
            return [(job, tokens * turns) for job, tokens in pieces], turns
        rotations = turns * len(pieces) // len(queue)
        if not rotations:
            return pieces, 1
        return [(job, pieces[0][1] * rotations) for job in queue], rotations * len(queue) // len(pieces)

    def _budget(self, several: bool) -> int:
        limits = self.machine.limits
        if not several:
            return limits.chunk_tokens
        short = min(level.short for level in self._service_levels)
        payers = 1 if self.tokens else self.present
        return max(1, min(limits.chunk_tokens, max(short, payers)))

    @property
    def _service_levels(self) -> list[Level]:
        return [level for level in self.levels.values() if not level.vault] or list(self.levels.values())

    def _pieces(self, budget: int) -> list[tuple[Job, int]]:
        """Of prompts that the service reads: in order with tokens, else in turn. A newcomer's short one is not cut."""
        pieces = []
        for job in self._reads:
            if budget <= 0:
                break
            tokens = job.left if job.uncut and job.left <= CREDIT else min(job.left, budget)
            pieces.append((job, tokens))
            budget -= tokens
        return pieces

    def _round(self, several: bool) -> tuple[list[tuple[Job, int]], float]:
        """Vaults that wait divide the cores, and the round's tokens."""
        level = self.levels[self._vault_reads[0].level]
        size = level.short if several else level.long
        spent, pieces, seconds = 0, list[tuple[Job, int]](), 0.0
        share = min(self.machine.cores, len(self._vault_reads))
        for job in self._vault_reads:
            if spent >= size:
                break
            tokens = job.left if job.uncut and job.left <= CREDIT else min(job.left, max(1, size // share))
            pieces.append((job, tokens))
            spent += tokens + PIECE_TOKENS
            level = self.levels[job.level]
            seconds += level.piece_s + tokens * level.token_s
        return pieces, seconds

    def _read(self, queue: deque[Job], pieces: list[tuple[Job, int]]) -> None:
        """Those of which something is left wait for their next turn: behind the others, unless they are in order."""
        for job, tokens in pieces:
            job.left -= tokens
            job.uncut = False
            if not job.left:
                queue.remove(job)
                self._first_token(job)
            elif queue is self._vault_reads or not self.tokens:
                queue.remove(job)
                queue.append(job)

    def _first_token(self, job: Job) -> None:
        level = self.levels[job.level]
        job.first = self.clock + level.first_s
        if job.output == 1:
            self._leave(job)
            return
        job.ends = self._made + job.output - 1
        self._rows[job.level] += 1
        self._context += job.prompt
        heappush(self._decoding, (job.ends, job.number, job))

    def _finish(self) -> None:
        while self._decoding and self._decoding[0][0] <= self._made + 1e-9:
            job = heappop(self._decoding)[2]
            self._rows[job.level] -= 1
            self._context -= job.prompt + job.output
            self._leave(job)
        if not self._decoding:
            self._context = self._made = 0.0

    def _leave(self, job: Job) -> None:
        self._vaults -= self.levels[job.level].vault
        self._held -= job.prompt + job.output
        self._pool -= 0 if self.levels[job.level].vault else job.prompt + job.output
        self._left_at = self.clock
        self.ended(job, self.clock + self.levels[job.level].first_s)
        self._admit(self.clock)

    def _step_s(self, rows: int) -> float:
        """Levels decode together: each costs its share of the rows."""
        count, seconds = len(self._decoding), 0.0
        for name, mine in self._rows.items():
            if mine:
                level = self.levels[name]
                whole = level.steps[min(rows, len(level.steps) - 1)]
                again = self.verified * rows * level.token_s if level.vault else 0.0
                seconds += mine / count * (whole + again + level.context_s * self._context * rows / count)
        return seconds

    def _decode_until(self, until: float) -> None:
        """Equal steps until one has its last token, another request is due, or contexts have grown."""
        count = len(self._decoding)
        rows = min(count, self._budget(self._several))
        seconds = self._step_s(rows)
        left = ceil((self._decoding[0][0] - self._made) * count / rows - 1e-9)
        steps = max(1, min(left, ceil(min((until - self.clock) / seconds, _STRETCH))))
        self._pass(seconds * steps)
        self._made += steps * rows / count
        self._context += steps * rows
        self._finish()

    def _pass(self, seconds: float) -> None:
        """Forks and reading of requests share the cores with the model: a turn takes twice as long at most."""
        owed = min(self._owed_s, seconds)
        self._owed_s -= owed
        self.clock += seconds + owed
