"""Users of a cloud without sockets, and an adversary: relay, nodes and issuer together, who know the code.

Each observation is all that they see of one request, flat: what is on the wire, what the node opens, sizes and moments
of the answer on the line, which tokens the issuer gave around that time. From half of the users the adversary learns
which agreements tell two requests of one user from two of others (naive Bayes on likelihood ratios); the other half it
has to tell apart.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cloister.access.batches import BATCH, read_requests, write_responses
from cloister.access.cloud import Cloud, CloudNode
from cloister.access.issuing import Issuer
from cloister.access.tokens import Token, token_of
from cloister.addresses import HttpAddress
from cloister.channel import bhttp
from cloister.channel.envelope import CONTENT_TYPE, Envelope, InnerHead, InnerRequest
from cloister.channel.ohttp import CHUNKED_RESPONSE_TYPE
from cloister.channel.ohttp.chunks import ChunkOpener, ChunkSealer
from cloister.channel.ohttp.encapsulation import (
    HEADER_BYTES,
    Form,
    Header,
    decapsulate,
    request_chain,
    response_chain,
    response_nonce,
)
from cloister.channel.ohttp.keys import document_of, read_keys
from cloister.channel.sealing import ChannelKey, open_prompt, open_request
from cloister.channel.stream import StreamSealer
from cloister.client import tokens as tokens_module
from cloister.client.cloud_transport import CloudAccess, CloudTransport
from cloister.client.oblivious import ObliviousTransport
from cloister.client.sealed_transport import AsyncSealedTransport, Raising, as_it_is
from cloister.client.tokens import TokenSource
from cloister.errors import QueueFull, TokenInvalid, TokenSpent, Unauthorized
from cloister_bench.privacy.replay import Way, traffic_of
from cloister_bench.privacy.traffic import BEAT_S

NODES = tuple(CloudNode(f"n{number}", f"http://n{number}.example:80") for number in range(3))
RELAY = HttpAddress.parse("http://relay.example:80")
DAY = 86_400.0
Seen = dict[str, object]
HIDDEN = Way(sealed=True, relayed=True, waits_s=BEAT_S)
GAPS = (0.02, 0.04, 0.06, 0.1)
MACHINES = (
    ("Linux", "3.11.2", "de"),
    ("MacOS", "3.13.0", "en"),
    ("Windows", "3.12.9", "fr"),
    ("FreeBSD", "3.14", "ja"),
)


@dataclass
class Clock:
    """Runs what is due as it moves on."""

    now: float = 20_000 * DAY
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, work))

    def move(self, to: float) -> None:
        while self.due and (first := min(self.due, key=lambda each: each[0]))[0] <= to:
            self.due.remove(first)
            self.now = first[0]
            first[1]()
        self.now = to


class Node:
    """Where the relay's wire ends: opens a request as the processes of a node do together, and notes all of it."""

    def __init__(self, world: World, place: CloudNode) -> None:
        self.world, self.place, self.address = world, place, HttpAddress.parse(place.url)
        self.key = ChannelKey.generate()

    def answer(self, outer: httpx2.Request, key: ChannelKey) -> httpx2.Response:
        data = outer.read()
        header = Header.decode(data)
        exchange = key.decapsulate(lambda private: decapsulate(private, header, Form.CHUNKED))
        opener = ChunkOpener(lambda begins: request_chain(header, exchange), HEADER_BYTES)
        message = bhttp.decode(opener.feed(data) + opener.finish(), 1 << 24)
        head = message.head
        assert isinstance(head, bhttp.RequestHead)
        envelope = Envelope.decode(message.content)
        keys = key.accept(envelope.enc)
        request = InnerRequest.decode(open_request(keys.request, envelope.enc, envelope.request))
        prompts = [open_prompt(keys.prompt, envelope.enc, at, sealed) for at, sealed in enumerate(envelope.prompts)]
        seen: Seen = {"relay size": len(data), "relay url": str(outer.url), "key": key.key_id}
        seen |= {f"outer {name}": value for name, value in outer.headers.multi_items()}
        seen |= {"outer order": tuple(outer.headers), "ohttp enc": header.enc, "method": head.method, "path": head.path}
        seen |= {f"inner {name}": value for name, value in head.headers} | {"sealed enc": envelope.enc}
        seen |= {"inner authority": head.authority, "sealed path": request.path, "body": request.body}
        seen |= {f"sealed {name}": value for name, value in request.headers}
        seen |= {"sealed order": tuple(name for name, _ in request.headers), "prompts": tuple(prompts)}
        seen |= {"valid for": request.validity.for_ms, "prompt sizes": tuple(map(len, envelope.prompts))}
        shown = dict(request.headers).get("authorization", "")
        refused: Unauthorized | None = None
        if shown.startswith("PrivateToken"):
            refused = self.world.gate(token := token_of(shown), self.place.name)
            seen |= {"nonce": token.nonce, "nonce begins": token.nonce[0], "token key": token.key_id}
            seen |= {"challenge": token.challenge_digest, "tenant": token.nonce[:16]}
        if not self.world.relayed:
            seen["address"] = f"192.0.2.{self.world.user}"  # what a connection shows where it ends
        if not refused:
            self.world.seen.append((self.world.user, self.world.clock.now, seen))
        nonce = response_nonce(header)
        chunks, stream = (
            ChunkSealer(response_chain(header, exchange, nonce), nonce),
            StreamSealer(keys.response, envelope.enc),
        )
        head = InnerHead(401 if refused else 200, (("content-type", "application/json"),))
        body = {"error": {"message": str(refused), "code": refused.code}} if refused else {}
        said = stream.head(head.encode()) + stream.data(json.dumps(body).encode())
        fields = (("content-type", CONTENT_TYPE),)
        content = bhttp.begin(bhttp.ResponseHead(200, fields)) + bhttp.chunk(said + stream.end()) + bhttp.end()
        headers = {"content-type": CHUNKED_RESPONSE_TYPE}
        return httpx2.Response(200, headers=headers, stream=_Whole(chunks.end(content)))


class _Whole(httpx2.AsyncByteStream):
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


class Verified:
    """A node as it is after verification, reached through the relay."""

    def __init__(self, node: Node, key: ChannelKey, cloud: Cloud) -> None:
        self.address, self._node, self._key = node.address, node, key
        self.channel_key = key.public
        self.cloud = cloud

    def wire(self) -> httpx2.AsyncBaseTransport:
        made = ObliviousTransport(self.address, RELAY, read_keys(document_of(self._key.public))[0])
        made._wire = httpx2.MockTransport(lambda outer: self._node.answer(outer, self._key))  # type: ignore[assignment]
        return made

    async def verified_beside(self, after: object = None) -> Verified:
        return self

    def node_ms(self) -> int:
        return 1_000_000


@dataclass
class World:
    folder: Path
    patch: pytest.MonkeyPatch
    users: int = 16
    own_keys: bool = False
    """Each user gets a key configuration of his own."""
    with_tokens: bool = True
    relayed: bool = True
    way: Way = HIDDEN
    seen: list[tuple[int, float, Seen]] = field(default_factory=list)
    granted: list[tuple[float, str]] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    user: int = 0
    spent: frozenset[bytes] = frozenset()

    def __post_init__(self) -> None:
        self.issuer = Issuer(
            self.folder / "issuer", "issuer", "/t", per_day=1 << 20, period_s=int(7 * DAY), clock=self.clock
        )
        self.cloud = Cloud(NODES, self.issuer.keys)
        self.patch.setattr(tokens_module, "time", self.clock)
        wire = httpx2.MockTransport(self._give)
        self.patch.setattr(tokens_module, "_http", lambda url: httpx2.Client(base_url=url, transport=wire))
        self.nodes = {place.name: Node(self, place) for place in NODES}

    def gate(self, token: Token, node: str) -> Unauthorized | None:
        """As a node's: counts, names this node, is not spent."""
        try:
            self.cloud.check(token, node, self.clock.now)
        except TokenInvalid as wrong:
            return wrong
        again, self.spent = token.nonce in self.spent, self.spent | {token.nonce}
        return TokenSpent("This token was spent before.") if again else None

    def _give(self, request: httpx2.Request) -> httpx2.Response:
        tenant, wanted = request.headers["authorization"], read_requests(request.read())
        self.granted.append((self.clock.now, tenant))
        try:
            answers = write_responses(self.issuer.issue(tenant.removeprefix("Bearer "), wanted))
        except QueueFull:
            return httpx2.Response(429)
        return httpx2.Response(200, headers={"content-type": BATCH[1]}, content=answers)

    def wire(self, user: int, raising: Raising = as_it_is) -> httpx2.AsyncBaseTransport:
        def node(place: CloudNode) -> Verified:
            real = self.nodes[place.name]
            key = own if self.own_keys else real.key
            return Verified(real, key, self.cloud)

        own = ChannelKey.generate()
        if not self.with_tokens:
            return AsyncSealedTransport(node(NODES[0]))  # type: ignore[arg-type]
        wallet = self.folder / f"{user}.json"
        source = TokenSource(self.cloud, "http://issuer.example", f"key-{user}", wallet, self.clock.later)
        access = CloudAccess(NODES[0].url, source, None)  # type: ignore[arg-type]
        made = CloudTransport(access, raising=raising)
        object.__setattr__(access, "node", node)
        object.__setattr__(access, "check_list", lambda found: None)
        source.begin()
        return made

    async def live(self, requests: int, drawn: random.Random) -> list[Observed]:
        """Each user asks at random times; the adversary's notes."""
        wires = {}
        for user in range(self.users):  # programs start at different times, and not with a request
            self.clock.move(self.clock.now + drawn.expovariate(1 / 60))
            wires[user] = self.wire(user)
        begins = self.clock.now + 3600
        times = sorted((begins + drawn.random() * DAY / 2, n % self.users) for n in range(self.users * requests))
        for at, user in times:
            self.clock.move(at)
            self.user = user
            machine = MACHINES[user % len(MACHINES)]
            answer = await wires[user].handle_async_request(asked(user, machine, drawn))
            await answer.aread()
            self.seen[-1][2].update(await asyncio.to_thread(self.on_the_line, user, random.Random(len(self.seen))))
        return [Observed(user, at, seen | self.around(at)) for user, at, seen in self.seen]

    def on_the_line(self, user: int, drawn: random.Random) -> Seen:
        """Of the answer. Each user's tokens come in a rhythm that the other users' do not have; all have one mean."""
        rhythm = 0.05 - 0.003 * user, 0.05 + 0.003 * user
        at, pieces = 0.2, []
        for _ in range(24):
            at += drawn.choice(rhythm)
            pieces.append((at, " " + "w" * drawn.randint(1, 6)))
        traffic = traffic_of(pieces, self.way)
        gaps = [round(later[0] - earlier[0], 3) for earlier, later in pairwise(traffic[1:-1])]
        seen: Seen = {f"gaps to {bound} s": round(4 * sum(gap <= bound for gap in gaps) / len(gaps)) for bound in GAPS}
        seen["usual gap"] = Counter(gaps).most_common(1)[0][0]
        return seen | {"sizes": frozenset(size for _, size in traffic[1:-1])}

    def around(self, at: float) -> Seen:
        """What the issuer's log says of a moment: who took tokens just then, and who did last."""
        near = {f"took within {s} s": self._took(at, s) for s in (1, 60, 600)}
        return {**near, "took last": max((one for one in self.granted if one[0] <= at), default=(0.0, ""))[1]}

    def _took(self, at: float, seconds: float) -> object:
        return tuple(sorted({tenant for time, tenant in self.granted if abs(time - at) <= seconds})) or None


def asked(user: int, machine: tuple[str, str, str], drawn: random.Random) -> httpx2.Request:
    """A request as an SDK and programs around it make it: a machine, a program, a person show in many places."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": drawn.choice(["a", "b " * 9, "c"])}]}
    body |= {"max_tokens": drawn.choice([16, 64]), "user": f"person-{user}", "metadata": {"team": user}}
    if user % 2:
        body = dict(reversed(body.items()))
    text = json.dumps(body, indent=user % 3 or None, separators=None if user % 5 else (",", ":"))
    headers = {"User-Agent": f"OpenAI/Python 3.{user % 7}", "X-Stainless-OS": machine[0], "Accept-Language": machine[2]}
    headers |= {"X-Stainless-Runtime-Version": machine[1], "Authorization": f"Bearer key-{user}", "Cookie": f"u={user}"}
    headers |= {"Accept": "*/*" if user % 2 else "application/json", "Content-Type": "application/json"}
    headers |= {"OpenAI-Organization": f"org-{user // 2}", "traceparent": f"00-{user:032x}-{user:016x}-01"}
    pairs = list(headers.items())
    random.Random(user).shuffle(pairs)
    return httpx2.Request("POST", f"{NODES[0].url}/v1/chat/completions", headers=pairs, content=text.encode())


@dataclass(frozen=True)
class Observed:
    user: int
    at: float
    seen: Seen


def advantage(observed: list[Observed]) -> float:
    """The adversary's AUC at telling pairs of one user from pairs of two; 0.5 is guessing."""
    users = sorted({each.user for each in observed})
    learned = _Learned([each for each in observed if each.user in users[::2]])
    pairs = list(_pairs([each for each in observed if each.user in users[1::2]]))
    same = [learned.score(one, other) for one, other in pairs if one.user == other.user]
    differ = [learned.score(one, other) for one, other in pairs if one.user != other.user]
    return auc(same, differ)


class _Learned:
    def __init__(self, observed: list[Observed]) -> None:
        counts = {True: Counter[tuple[str, str]](), False: Counter[tuple[str, str]]()}
        total = {True: 2.0, False: 2.0}
        for one, other in _pairs(observed):
            counts[one.user == other.user].update(_agreements(one, other))
            total[one.user == other.user] += 1
        seen = {each for counter in counts.values() for each in counter}
        rate = {kind: {each: (counts[kind][each] + 1) / total[kind] for each in seen} for kind in counts}
        self._weights = {each: math.log(rate[True][each] / rate[False][each]) for each in seen}

    def score(self, one: Observed, other: Observed) -> float:
        return sum(self._weights.get(each, 0.0) for each in _agreements(one, other))


def _agreements(one: Observed, other: Observed) -> Iterator[tuple[str, str]]:
    yield "hours between", str(int(abs(one.at - other.at) / 3600))
    for name in one.seen.keys() | other.seen.keys():
        ours, theirs = one.seen.get(name), other.seen.get(name)
        yield name, "none" if ours is None or theirs is None else ("same" if ours == theirs else "other")


def _pairs(observed: list[Observed]) -> Iterator[tuple[Observed, Observed]]:
    return combinations(observed, 2)


def auc(higher: list[float], lower: list[float]) -> float:
    ranked = Counter(lower)
    below, sums = 0, 0.0
    positives = Counter(higher)
    for score in sorted(ranked.keys() | positives.keys()):
        sums += positives[score] * (below + ranked[score] / 2)
        below += ranked[score]
    return sums / (len(higher) * len(lower))
