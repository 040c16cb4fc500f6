"""(g) The topic of streamed answers, from sizes and moments (McDonald and Bar Or, "Whisper Leak", 2025). Answers are
recorded once from a node, token by token; what leaves on other ways is the node's own code on the recorded moments."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from cloister.errors import ServiceUnavailable, SetupError
from cloister.levels import PARTITIONED
from cloister.sealed_api.process import SealedApiClient
from cloister_bench.connection import Connection, Exchange
from cloister_bench.privacy.classifier import crossed_auc
from cloister_bench.privacy.replay import Recorded, Way, traffic_of
from cloister_bench.privacy.rows import Victim, row
from cloister_bench.servers import OwnServer
from cloister_bench.suite.documents import Row

USERS = 8
MOST_TOKENS = 64
BEAT_S = SealedApiClient.beat_s
WAYS = {
    "plain stream": Way(),
    "sealed, beat off": Way(sealed=True),
    "sealed": Way(sealed=True, waits_s=BEAT_S),
    "sealed, behind a relay": Way(sealed=True, waits_s=BEAT_S, relayed=True),
    "plain stream, --beat": Way(beat_s=BEAT_S),
}
TARGET = 0.55
Labelled = tuple[int, int, Recorded]  # topic, group, answer


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


def record(victim: Victim) -> list[Labelled]:
    found: list[Labelled] = []
    asked = [one for one in victim.texts if "topic" in one]
    if not asked:
        raise SetupError("Traffic has no prompts.", hint="Give --texts, or leave out --attacks traffic.")

    def user(first: int) -> None:
        connection = Connection(node.address, node.api_key)
        for number, one in list(enumerate(asked))[first::USERS]:
            body = {"model": node.model, "max_tokens": MOST_TOKENS, "stream": True, "seed": number, "temperature": 0.8}
            body |= {"messages": [{"role": "user", "content": one["text"]}], "protection": PARTITIONED}
            exchange = connection.exchange("POST", "/v1/chat/completions", json.dumps(body).encode())
            if exchange.status != 200:
                raise ServiceUnavailable(f"The measured server answered {exchange.status}.")
            if answer := recorded(exchange):
                found.append((one["topic"], one["group"], answer))
            victim.say(f"recording, {len(found)} of {len(asked)}")
        connection.close()

    options = ("--mpc", "off", "--no-detector", "--max-vaults", "16", "--kv-cache-mib", "256")
    with TemporaryDirectory(prefix="cloister-privacy-") as logs, OwnServer(victim.model, Path(logs), options) as node:
        node.wait()
        with ThreadPoolExecutor(USERS) as users:
            list(users.map(user, range(USERS)))
    return found


def classified(answers: list[Labelled]) -> Iterator[Row]:
    topics, groups, _ = zip(*answers, strict=True)
    baseline: float | None = None
    for name, way in WAYS.items():
        area, low, high = crossed_auc([traffic_of(answer, way) for *_, answer in answers], topics, groups)
        baseline = area if baseline is None else baseline
        gets = {"share": area, "low": low, "high": high, "of": len(answers)}
        yield row("traffic", "every level", name, gets, baseline, "AUC, two topics", guessing=0.5)


def attack(victim: Victim) -> Iterator[Row]:
    yield from classified(record(victim))
