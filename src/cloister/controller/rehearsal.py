"""One real request a level, alone and beside others, must have equal answers. It leaves no session, page or count."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import cast

import msgspec
from msgspec.structs import replace

from cloister.controller.relay import Relay
from cloister.controller.requests import NEIGHBOUR, REHEARSAL
from cloister.errors import CloisterError, ModelUnsupported, QueueFull, RequestTimeout
from cloister.levels import LEVELS, OPEN, PARTITIONED, LevelName, PrivateLevel, Reader, ReadLevel
from cloister.messages import prompts as prompts
from cloister.messages.controller_frontend import Ask, EndSession, Serving, SubmitTokens, View
from cloister.messages.generation import Accepted, Cancel, Failed, Stats, Tokens
from cloister.messages.lifecycle import raised
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister.process.supervisor import cancelled

PATIENCE_S = 120.0  # for one answer; a slower model is of no use
NEAR = 0.5  # logprobs; of bf16, ten times what was seen
FULL_S = 0.05  # between two tries at a node that has no room for all requests at once
SUBJECT = tuple(range(3, 27))
OTHER = tuple(range(60, 20, -1))  # token ids within any vocabulary: more than a block each, of different lengths
HIDDEN = prompts.TextPrompt(
    "My name is <redacted>Ann</redacted>. Say it.",
    hidden=prompts.ObfuscationSecrets(bytes(prompts.INDEX_SECRET_BYTES), (("Bob",),)),
)
GREEDY = SamplingParams(max_tokens=3, temperature=0.0, logprobs=1)
WITH_OTHERS = replace(GREEDY, logprobs=5)
WORST = -9999.0
NOT_SCORED = TokenLogprob(0.0)
WHILE_OTHERS_ANSWER = SamplingParams(max_tokens=64, temperature=0.0)
Answer = dict[int, list[tuple[int, TokenLogprob]]]  # by sequence


class Rehearsal:
    """Not `equal_bits`: answers need be near only, until their tokens part; and what goes on beside them may show."""

    def __init__(self, relay: Relay, serving: Serving, *, equal_bits: bool = True) -> None:
        self._equal_bits = equal_bits
        self._relay, self._serving = relay, serving
        self._number = relay.availability.rehearser = relay.add_frontend(self)
        self._ids = count(1)
        self._answers: dict[int, Answer] = {}
        self._ends: dict[int, asyncio.Future[Answer]] = {}
        self.failed: dict[LevelName, CloisterError] = {}

    async def play(self, levels: Iterable[LevelName]) -> None:
        tried = [level for level in levels if LEVELS[level].reader is not Reader.MPC_CLIENT]
        try:
            alone: dict[LevelName, Answer] = {}
            for level in tried:
                if (answer := await self._tried(level, "alone")) is not None:
                    alone[level] = answer
            self._leave("alone")
            self._compare_levels(alone)
            await self._beside_others(alone)
        finally:
            for session in ("alone", "together"):
                self._leave(session)
            self._leave("neighbour", NEIGHBOUR)
            await self._forget_counts()
            self._relay.remove_frontend(self._number)
            self._relay.availability.rehearser = 0

    async def _beside_others(self, alone: dict[LevelName, Answer]) -> None:
        beside = [level for level in (OPEN, PARTITIONED) if level in alone]
        neighbours = [asyncio.create_task(self._neighbour(level)) for level in beside]
        try:
            together = await asyncio.gather(*(self._tried(level, "together", FULL_S) for level in alone))
        finally:
            await cancelled(*neighbours)
        for level, answer in zip(alone, together, strict=True):
            if answer is not None and not self._agree(answer, alone[level]):
                self.failed[level] = _differs("depends on what is computed beside it")

    def _compare_levels(self, alone: dict[LevelName, Answer]) -> None:
        for level in [level for level in alone if not LEVELS[level].obfuscates]:
            if OPEN in alone and not self._agree(alone[level], alone[OPEN]):
                self.failed[level] = _differs(f"is another than at the level {OPEN!r}")
                del alone[level]

    def _agree(self, one: Answer, other: Answer) -> bool:
        return one == other if self._equal_bits else _are_near(one.get(0, []), other.get(0, []))

    # ---- one request

    async def _tried(self, level: LevelName, session: str, again_s: float | None = None) -> Answer | None:
        """None if it fails: see `failed`. A full node is asked again after `again_s`, if that is given."""
        try:
            while True:
                try:
                    greedy = GREEDY if self._equal_bits else WITH_OTHERS
                    return await self._asked(level, session, params=greedy)
                except QueueFull:
                    if again_s is None:
                        raise
                    await asyncio.sleep(again_s)
        except CloisterError as reason:
            self.failed[level] = reason
            return None

    async def _neighbour(self, level: LevelName) -> None:
        while True:
            with suppress(CloisterError):
                await self._asked(level, "neighbour", NEIGHBOUR, OTHER, WHILE_OTHERS_ANSWER)
            await asyncio.sleep(4 * FULL_S)  # a node with room for one request serves the others meanwhile

    async def _asked(
        self,
        level: LevelName,
        session: str,
        tenant: str = REHEARSAL,
        prompt: tuple[int, ...] = SUBJECT,
        params: SamplingParams = GREEDY,
    ) -> Answer:
        number = next(self._ids)
        room = self._serving.max_context - params.max_tokens
        ids = tuple(token % self._serving.vocabulary for token in prompt[: max(1, room)])
        message: msgspec.Struct
        if LEVELS[level].uses_vault:
            if not self._relay.sessions.has_room(tenant, session):
                raise QueueFull("Users have all vaults.", retry_after=1)
            hides, keep = LEVELS[level].obfuscates, tenant == REHEARSAL
            written, hiding = (
                prompts.write_prompt(HIDDEN if hides else prompts.TokenPrompt(ids)),
                prompts.ObfuscationParams(fakes=1),
            )
            ask = Ask(number, tenant, cast(PrivateLevel, level), session, keep, written, params)
            message = replace(ask, obfuscation=hiding) if hides else ask
        else:
            message = SubmitTokens(number, tenant, ids, params, level=cast(ReadLevel, level))
        end: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._ends[number], self._answers[number] = end, {}
        try:
            self._relay.from_frontend(self._number, message)
            async with asyncio.timeout(PATIENCE_S):
                return await end
        except TimeoutError:
            raise RequestTimeout(f"There was no answer within {PATIENCE_S:.0f} s.") from None
        finally:
            del self._ends[number], self._answers[number]
            if not end.done() or end.cancelled():
                self._relay.from_frontend(self._number, Cancel(number))

    def send(self, message: msgspec.Struct) -> None:
        match message:
            case Tokens(request_id=number) if number in self._answers:
                scores = message.logprobs or (NOT_SCORED,) * len(message.tokens)
                self._answers[number].setdefault(message.sequence, []).extend(zip(message.tokens, scores, strict=True))
                if message.finish is not None and not self._ends[number].done():
                    self._ends[number].set_result(self._answers[number])
            case Failed(request_id=number) if number in self._ends and not self._ends[number].done():
                self._ends[number].set_exception(raised(message))
            case Accepted() | Tokens() | Failed() | Stats() | View():
                pass

    send_soon = send

    def _leave(self, session: str, tenant: str = REHEARSAL) -> None:
        self._relay.from_frontend(self._number, EndSession(tenant, session, private=True))

    async def _forget_counts(self) -> None:
        service = self._relay.service
        if service is not None:
            counted = asyncio.Event()

            def handle(stats: Stats) -> None:
                self._relay.totals.forget_rehearsal(stats)
                counted.set()

            service.ask_stats(handle)
            await counted.wait()


def _are_near(one: list[tuple[int, TokenLogprob]], other: list[tuple[int, TokenLogprob]]) -> bool:
    """Kernels that sum in another order may choose another token where both have it among the likeliest."""
    for (token, score), (another, scored) in zip(one, other, strict=False):
        likely = {**dict(score.top), token: score.logprob}
        if abs(likely.get(another, WORST) - scored.logprob) > NEAR:
            return False
        if token != another:
            break
    return bool(one) and bool(other)


def _differs(how: str) -> CloisterError:
    return ModelUnsupported(f"The answer to one and the same prompt {how}.")
