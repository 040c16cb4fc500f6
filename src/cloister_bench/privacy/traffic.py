"""(g) The topic of streamed answers, from sizes and moments (McDonald and Bar Or, "Whisper Leak", 2025). Answers are
recorded once from a node, token by token; what leaves on other ways is the node's own code on the recorded moments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from cloister.errors import ServiceUnavailable
from cloister.levels import PARTITIONED
from cloister.sealed_api.process import SealedApiClient
from cloister_bench.connection import Connection, Exchange
from cloister_bench.privacy.classifier import crossed_auc
from cloister_bench.privacy.replay import Recorded, Way, traffic_of
from cloister_bench.privacy.rows import Row, Victim, row
from cloister_bench.servers import OwnServer

FORMS = (
    "What is {}? Answer in one sentence.",
    "Explain {} to a beginner.",
    "Tell me about {} in a few words.",
    "What should I know about {}? Be brief.",
    "Why does {} matter? One sentence.",
    "Give me two facts about {}.",
    "How does {} work?",
    "My friend asked me about {}. What do I say?",
    "Is {} hard to understand? Answer shortly.",
    "Write one line about {}.",
)
TOPICS = (
    ("money laundering", "tax evasion", "shell companies", "bribery of officials", "insider trading"),
    ("growing tomatoes", "the violin", "a marathon", "the water cycle", "bread baking"),
)
USERS = 8
MOST_TOKENS = 64
BEAT_S = SealedApiClient.beat_s
WAYS = {
    "plain stream": Way(),
    "sealed, beat off": Way(sealed=True),
    "sealed": Way(sealed=True, waits_s=BEAT_S),
    "plain stream, --beat": Way(beat_s=BEAT_S),
}
TARGET = 0.55
Labelled = tuple[int, int, Recorded]  # topic, subject, answer


def prompts(count: int, seed: int) -> list[tuple[int, int, str]]:
    """(topic, subject, prompt): both topics and all subjects alike, in the same forms."""
    every = [
        (topic, topic + 2 * number, form.format(subject))
        for form, (number, _) in product(FORMS, enumerate(TOPICS[0]))
        for topic, subject in ((0, TOPICS[0][number]), (1, TOPICS[1][number]))
    ]
    return [every[number % len(every)] for number in range(count)] if count else Random(seed).sample(every, 2)


def recorded(exchange: Exchange) -> Recorded:
    """Text and its moment, one for each event."""
    found: list[tuple[float, str]] = []
    held = b""
    for at, piece in exchange.arrivals:
        *lines, held = (held + piece).split(b"\n\n")
        for line in lines:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices", ())
                text = "".join(choice["delta"].get("content") or "" for choice in choices)
                found += [(at - exchange.sent, text)] if text else []
    return found


async def _record(node: OwnServer, victim: Victim, level: str) -> list[Labelled]:
    asked = prompts(victim.plan.streams, victim.plan.seed)
    waiting, found = list(enumerate(asked)), list[Labelled]()

    async def user() -> None:
        connection = await Connection.open(node.address, node.api_key)
        while waiting:
            number, (topic, subject, text) = waiting.pop(0)
            body = {"model": node.model, "max_tokens": MOST_TOKENS, "stream": True, "seed": number, "temperature": 0.8}
            messages = [{"role": "user", "content": text}]
            sent = json.dumps({**body, "messages": messages, "protection": level}).encode()
            if not connection.usable:
                connection = await Connection.open(node.address, node.api_key)
            exchange = await connection.exchange("POST", "/v1/chat/completions", sent)
            if exchange.status != 200:
                raise ServiceUnavailable(f"The measured server answered {exchange.status}.")
            if answer := recorded(exchange):
                found.append((topic, subject, answer))
            victim.say(f"recording, {len(found)} of {len(asked)}")
        connection.close()

    await asyncio.gather(*(user() for _ in range(USERS)))
    return found


def record(victim: Victim) -> list[Labelled]:
    options = ("--mpc", "off", "--no-detector", "--max-vaults", "16", "--kv-cache-mib", "256")
    with TemporaryDirectory(prefix="cloister-privacy-") as logs, OwnServer(victim.model, Path(logs), options) as node:
        node.wait()
        return asyncio.run(_record(node, victim, PARTITIONED))


def classified(answers: list[Labelled]) -> Iterator[Row]:
    topics, subjects = [one[0] for one in answers], [one[1] // 2 for one in answers]
    baseline: float | None = None
    for name, way in WAYS.items():
        area, low, high = crossed_auc([traffic_of(one[2], way) for one in answers], topics, subjects)
        gets = {"share": round(area, 4), "low": round(low, 4), "high": round(high, 4), "of": len(answers)}
        baseline = gets["share"] if baseline is None else baseline
        yield row("traffic", "every level", name, gets, baseline, "AUC, two topics")


def attack(victim: Victim) -> Iterator[Row]:
    yield from classified(record(victim))
