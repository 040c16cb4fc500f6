"""What the two watches of an answer (vault.recitation) cost for each token. Nodes with and without `--watch-attention`
run at the same time and are asked in turns; only whole answers of equal length count."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cloister.errors import ServiceUnavailable
from cloister.levels import PARTITIONED
from cloister.vault.looks import SYSTEM
from cloister_bench.connection import Connection
from cloister_bench.privacy.rows import Victim, row
from cloister_bench.servers import OwnServer
from cloister_bench.suite.documents import Row

USERS = (1, 8)
TOKENS, MOST_ROUNDS, RESAMPLES = 96, 12, 1000
NODES = {"letters": ("--verify", "off"), "attention": ("--verify", "off", "--watch-attention")}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {  # which node, and what the request asks for
    "nothing": ("letters", {}),
    "verified": ("letters", {"verify": True}),
    "letters": ("letters", {"stop_recitation": True}),
    "letters and attention": ("attention", {"stop_recitation": True}),
    "nothing, beside --watch-attention": ("attention", {}),
}
SHOWN = (  # two nodes are never equal, so ratios are of one; the last says how unequal they were
    ("verified", "nothing"),
    ("letters", "nothing"),
    ("letters", "verified"),
    ("letters and attention", "nothing, beside --watch-attention"),
    ("nothing, beside --watch-attention", "nothing"),
)
Times = Mapping[str, Sequence[float]]  # ms a token, by round


def answered(node: OwnServer, number: int, **more: Any) -> float:
    """ms a token, the prompt's with it."""
    said = f"How long does an egg of {number} grams boil, and why?"
    body = {"model": node.model, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "protection": PARTITIONED}
    body |= {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": said}], **more}
    connection = Connection(node.address, node.api_key)
    exchange = connection.exchange("POST", "/v1/chat/completions", json.dumps(body).encode())
    connection.close()
    if exchange.status != 200:
        raise ServiceUnavailable(f"The measured server answered {exchange.status}.")
    if (tokens := json.loads(exchange.body)["usage"]["completion_tokens"]) != TOKENS:
        raise ServiceUnavailable(f"An answer has {tokens} tokens, not {TOKENS}: a watch ended it.")
    return 1000 * (exchange.arrivals[-1][0] - exchange.sent) / TOKENS


def attack(victim: Victim) -> Iterator[Row]:
    """None: the cost of the defence against `recitation`."""
    rounds = min(MOST_ROUNDS, victim.plan.recitals)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="cloister-watching-")))
        common = ("--mpc", "off", "--no-detector", "--max-vaults", "16")
        nodes = {
            name: stack.enter_context(OwnServer(victim.model, logs, (*common, *more))) for name, more in NODES.items()
        }
        for node in nodes.values():
            node.wait()
        for users in USERS:
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            with ThreadPoolExecutor(users) as pool:
                for turn in range(-1, rounds):  # the first warms up
                    ways = list(WAYS)
                    for way in (*ways[turn % len(ways) :], *ways[: turn % len(ways)]):
                        name, more = WAYS[way]
                        victim.say(f"{users} users, round {turn + 1} of {rounds}: {way}")
                        took = fmean(pool.map(lambda number: answered(nodes[name], number, **more), range(users)))  # noqa: B023
                        times[way] += [took] if turn >= 0 else []
            yield from rows_of(times, users)


def rows_of(times: Times, users: int) -> Iterator[Row]:
    """Ratios of the same round; their median, with what 95% of drawn rounds give."""
    draw = np.random.default_rng(0)
    for way, beside in SHOWN:
        ratios = np.array(times[way]) / np.array(times[beside])
        drawn = np.median(draw.choice(ratios, (RESAMPLES, len(ratios))), 1)
        low, high = (round(float(one), 4) for one in np.quantile(drawn, (0.025, 0.975)))
        gets = {"share": round(float(np.median(ratios)), 4), "low": low, "high": high, "of": len(ratios)}
        more = {"users": users, "ms_a_token": round(median(times[way]), 3)}
        setting, unit = f"{way}, {users} users", f"time a token, ÷ {beside}"
        yield row("watching", PARTITIONED, setting, gets, None, unit, **more)
