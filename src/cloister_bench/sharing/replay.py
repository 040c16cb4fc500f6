"""Sends a workload to a server and notes when each first token came. Knows bodies and keys, not what policies are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cloister.addresses import HttpAddress
from cloister_bench import messages
from cloister_bench.load import User
from cloister_bench.messages import Answer, BrokenAnswer
from cloister_bench.report import Percentiles
from cloister_bench.sharing.workloads import Messages, Session, Workload

ANSWER_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """`tokens_per_s`: of prompts and answers together, as the paper counts; `found`: prompt tokens found computed."""

    requests: int
    errors: int
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    tokens_per_s: float
    wall_s: float
    prompt_tokens: int
    found: int


def summarise(answers: Sequence[Answer], errors: Counter[str]) -> Served:
    firsts = [answer.first_token - answer.sent for answer in answers]
    wall = max((a.last_token for a in answers), default=0.0) - min((a.sent for a in answers), default=0.0)
    tokens = sum(answer.prompt_tokens + answer.output_tokens for answer in answers)
    spread = Percentiles.of_seconds(firsts)
    return Served(
        requests=len(answers) + errors.total(),
        errors=errors.total(),
        mean_ms=round(1000 * sum(firsts) / len(firsts), 3) if firsts else None,
        p50_ms=spread.p50,
        p95_ms=spread.p95,
        p99_ms=spread.p99,
        tokens_per_s=round(tokens / wall, 3) if wall > 0 else 0.0,
        wall_s=round(wall, 3),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        found=sum(answer.cached_tokens for answer in answers),
    )


def body(model: str, level: str, said: Messages, output_tokens: int) -> bytes:
    asked = {"model": model, "messages": said, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}, "protection": level}
    return msgspec.json.encode({**asked, **streamed})


async def replay(
    address: HttpAddress,
    keys: Sequence[str],
    model: str,
    level: str,
    workload: Workload,
) -> Served:
    load = messages.Workload(endpoint="chat", timeout_s=ANSWER_S)
    room = asyncio.Semaphore(workload.users or len(workload.sessions) or 1)
    answers: list[Answer] = []
    errors: Counter[str] = Counter()

    async def serve(session: Session) -> None:
        await asyncio.sleep(session.at)
        async with room:
            user = User(address, keys[session.tenant % len(keys)], load)
            try:
                for said in session.turns:
                    try:
                        answers.append(await user.ask(body(model, level, said, session.output_tokens)))
                    except BrokenAnswer as broken:
                        errors[broken.kind] += 1
            finally:
                await user.leave()

    await asyncio.gather(*map(serve, workload.sessions))
    return summarise(answers, errors)
