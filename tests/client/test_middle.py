"""Somebody stands between client and node and does what they can: every variant is caught, whichever way one asks.

Caught means: before a byte of the prompt is sent, or before the answer is believed whole; and never by sending it in
the clear.
"""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from cloister.attest import node as node_module
from cloister.attest.attester import Attestation, Tee
from cloister.attest.evidence import VERSION, NodeEvidence, read_evidence, write_evidence
from cloister.attest.policy import Policy
from cloister.attest.snp import SnpPolicy, verify_snp
from cloister.channel.envelope import CONTENT_TYPE
from cloister.channel.sealing import ChannelKey
from cloister.client.openai import AsyncClient, Client
from cloister.errors import ChannelBroken, CloisterError, VerificationFailed
from cloister.transparency.checkpoint import ReleaseTrust
from tests.attest.snp_maker import Chip
from tests.client.fake_node import KEY, MODEL, FakeNode, manifest_of, release_in, running
from tests.client.http_server import Received, Reply, once, reply
from tests.client.local_proxy import proxy_to
from tests.client.middle import Next, Tricks, standing_between, whole

SECRET = "a secret that only the vault may read"
MESSAGES: Any = [{"role": "user", "content": SECRET}]
DEVELOPMENT = Policy(allow_software_tee=True)
ANSWER = "so it is "

Ask = Callable[[str, Policy, bool], str]


def by_client(url: str, policy: Policy, stream: bool) -> str:
    with Client(url, api_key=KEY, policy=policy, timeout=60) as client:
        return _asked(client, stream)


def by_async_client(url: str, policy: Policy, stream: bool) -> str:
    async def ask() -> str:
        async with AsyncClient(url, api_key=KEY, policy=policy, timeout=60) as client:
            if not stream:
                answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
                return answer.choices[0].message.content or ""
            events = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            return "".join([event.choices[0].delta.content or "" async for event in events])

    return asyncio.run(ask())


def by_proxy(url: str, policy: Policy, stream: bool) -> str:
    with proxy_to(url, policy) as local, openai.OpenAI(base_url=f"{local}/v1", api_key=KEY, max_retries=0) as client:
        return _asked(client, stream)


def _asked(client: openai.OpenAI, stream: bool) -> str:
    if not stream:
        return client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content or ""
    events = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    return "".join(event.choices[0].delta.content or "" for event in events)


WAYS = [by_client, by_async_client, by_proxy]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Ask:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def tricks(*, evidence: Any = None, sealed: Any = None) -> Tricks:
    async def trick(received: Received, forward: Next) -> Reply:
        chosen = evidence if received.path.endswith("/v1/evidence") else sealed
        return await (chosen(received, forward) if chosen else forward(received))

    return trick


def test_who_only_listens_learns_sizes(node: FakeNode, way: Ask, stream: bool) -> None:
    heard: list[bytes] = []

    async def listen(received: Received, forward: Next) -> Reply:
        answer = await forward(received)

        async def noted() -> AsyncIterator[bytes]:
            async for piece in answer.body:
                heard.append(piece)
                yield piece

        return Reply(answer.status, answer.content_type, noted())

    with standing_between(node.url, tricks(sealed=listen)) as middle:
        assert way(middle.url, DEVELOPMENT, stream) == ANSWER
    for private in (SECRET, KEY, MODEL, "chat", "so ", "assistant"):
        assert private.encode() not in middle.saw + b"".join(heard)
    assert node.opened[-1].prompts == [MESSAGES]


# Before anything is sent: whoever alters the evidence never sees a sealed byte.


def altering(change: Callable[[NodeEvidence], NodeEvidence]) -> Any:
    async def alter(received: Received, forward: Next) -> Reply:
        evidence = read_evidence(await whole(await forward(received)))
        return reply(200, write_evidence(change(evidence)))

    return alter


def other_release(evidence: NodeEvidence) -> NodeEvidence:
    assert evidence.release is not None
    return replace(evidence, release=replace(evidence.release, manifest=manifest_of("9.9.9")))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda evidence: replace(evidence, channel_key=ChannelKey.generate().public), "report data"),
        (lambda evidence: replace(evidence, measurement=b"m" * 32), "report data"),
        (
            lambda evidence: replace(evidence, statement=evidence.statement.replace(b"made-up", b"made-im")),
            "report data",
        ),
        (other_release, "release manifest"),
        (lambda evidence: replace(evidence, release=None), "log key"),
        (lambda evidence: replace(evidence, version=VERSION + 1), "evidence"),
        (lambda evidence: replace(evidence, report=b"x" * 5000), "evidence"),
    ],
    ids=["swapped key", "measurement", "statement", "other release", "no release", "version", "report"],
)
def test_altered_evidence_gets_nothing(node: FakeNode, way: Ask, change: Any, check: str) -> None:
    with standing_between(node.url, tricks(evidence=altering(change))) as middle:
        with pytest.raises(VerificationFailed) as caught:
            way(middle.url, DEVELOPMENT, False)
        assert check in caught.value.checks
        assert not middle.sealed_seen and not node.opened


def test_recorded_evidence_is_stale(node: FakeNode, way: Ask) -> None:
    recorded: list[bytes] = []

    async def replay(received: Received, forward: Next) -> Reply:
        if not recorded:
            recorded.append(await whole(await forward(received)))
        return reply(200, recorded[0])

    with standing_between(node.url, tricks(evidence=replay)) as middle:
        assert way(middle.url, DEVELOPMENT, False) == ANSWER
        with pytest.raises(VerificationFailed) as caught:
            way(middle.url, DEVELOPMENT, False)
        assert "report data" in caught.value.checks and len(middle.sealed_seen) == 1


class ChipAttester:
    """A chip as hardware has it, whose key nobody else holds."""

    def __init__(self) -> None:
        self.chip = Chip()

    @property
    def tee(self) -> Tee:
        return "sev-snp"

    def attest(self, report_data: bytes) -> Attestation:
        return Attestation("sev-snp", self.chip.report(report_data=report_data), tuple(self.chip.pieces))


def test_who_attests_for_their_own_key_is_not_that_hardware(
    tmp_path: Path, way: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody with a copy of the release and a key of their own can say everything a node says, but not sign it."""
    release = release_in(tmp_path / "log")
    mine, theirs = ChipAttester(), ChipAttester()
    from tests.attest.snp_maker import AT

    now = partial(verify_snp, roots=mine.chip.roots)
    monkeypatch.setattr(node_module, "verify_snp", lambda *given, **more: now(*given, **{**more, "at": AT}))
    policy = Policy(snp=SnpPolicy(measurements=("aa" * 48,)), release=ReleaseTrust(logs=(release.log_key,)))
    with running(FakeNode(release, attester=mine)) as node:
        assert way(node.url, policy, False) == ANSWER
    with running(FakeNode(release, attester=theirs)) as impostor:
        impostor.attester = Relabelled(theirs, mine)
        with pytest.raises(VerificationFailed) as caught:
            way(impostor.url, policy, False)
        assert "report signature" in caught.value.checks and not impostor.opened


class Relabelled:
    """A report of one chip with the certificates of another."""

    def __init__(self, signer: ChipAttester, named: ChipAttester) -> None:
        self._signer = signer
        self._named = named

    @property
    def tee(self) -> Tee:
        return "sev-snp"

    def attest(self, report_data: bytes) -> Attestation:
        report = self._signer.attest(report_data).report
        return Attestation("sev-snp", report, tuple(self._named.chip.pieces))


# The answer on its way: whatever is done to the stream, nobody takes it for whole.


def frames_of(data: bytes) -> tuple[bytes, list[bytes]]:
    salt, at, frames = data[:32], 32, []
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        frames.append(data[at : at + 4 + length])
        at += 4 + length
    return salt, frames


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def with_frames(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        salt, frames = frames_of(data)
        return salt + b"".join(change(frames))

    return changed


MEDDLING: dict[str, Callable[[bytes], bytes]] = {
    "cut off at once": lambda data: b"",
    "cut off in the salt": lambda data: data[:20],
    "cut off after the salt": lambda data: data[:32],
    "cut off in a frame": lambda data: data[:-700],
    "the end left out": with_frames(lambda frames: frames[:-1]),
    "only the head": with_frames(lambda frames: frames[:1]),
    "head and end": with_frames(lambda frames: [frames[0], frames[-1]]),
    "a frame left out": with_frames(lambda frames: [*frames[:1], *frames[2:]]),
    "a frame twice": with_frames(lambda frames: [*frames[:2], *frames[1:]]),
    "frames reordered": with_frames(lambda frames: [*frames[:-2], frames[-1], frames[-2]]),
    "something after the end": lambda data: data + b"x",
    "a frame after the end": with_frames(lambda frames: [*frames, frames[-1]]),
    "a bit of the salt": lambda data: flipped(data, 3),
    "a bit of a length": lambda data: flipped(data, 34),
    "a bit of the head": lambda data: flipped(data, 60),
    "a bit of the end": lambda data: flipped(data, len(data) - 1),
    "not sealed at all": lambda data: json.dumps({"choices": [{"message": {"content": "believe me"}}]}).encode(),
}


@pytest.mark.parametrize("meddling", MEDDLING, ids=lambda name: name.replace(" ", "-"))
def test_an_altered_answer_is_not_believed(node: FakeNode, way: Ask, stream: bool, meddling: str) -> None:
    async def meddle(received: Received, forward: Next) -> Reply:
        data = await whole(await forward(received))
        return Reply(200, CONTENT_TYPE, once(MEDDLING[meddling](data)))

    with standing_between(node.url, tricks(sealed=meddle)) as middle:
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError)) as caught:
            way(middle.url, DEVELOPMENT, stream)
        assert len(middle.sealed_seen) == 1, "it was sent again on its own"
    assert "believe me" not in str(caught.value) and SECRET.encode() not in middle.saw
    assert not node.in_the_clear
    if way is not by_proxy:
        assert isinstance(caught.value, CloisterError) and caught.value.code == "channel_broken"


@pytest.mark.parametrize("pieces", [0, 2])
def test_a_connection_that_breaks_is_not_an_end(node: FakeNode, way: Ask, stream: bool, pieces: int) -> None:
    async def cut(received: Received, forward: Next) -> Reply:
        answer = await forward(received)

        async def some() -> AsyncIterator[bytes]:
            number = 0
            async for piece in answer.body:
                if number == pieces:
                    raise ConnectionAbortedError
                yield piece
                number += 1

        return Reply(200, CONTENT_TYPE, some())

    with standing_between(node.url, tricks(sealed=cut)) as middle:
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError)) as caught:
            way(middle.url, DEVELOPMENT, stream)
        assert len(middle.sealed_seen) == 1, "it was sent again on its own"
        assert SECRET.encode() not in middle.saw
    if way is not by_proxy:
        assert isinstance(caught.value, ChannelBroken)


def test_another_requests_answer_is_not_this_ones(node: FakeNode, way: Ask, stream: bool) -> None:
    recorded: list[bytes] = []

    async def replay(received: Received, forward: Next) -> Reply:
        data = await whole(await forward(received))
        recorded.append(data)
        return Reply(200, CONTENT_TYPE, once(recorded[0]))

    with standing_between(node.url, tricks(sealed=replay)) as middle:
        assert way(middle.url, DEVELOPMENT, stream) == ANSWER
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError)):
            way(middle.url, DEVELOPMENT, stream)


# The request on its way.


def test_a_repeated_message_is_taken_once_and_its_refusal_is_no_answer(node: FakeNode, way: Ask) -> None:
    async def twice(received: Received, forward: Next) -> Reply:
        await whole(await forward(received))
        return await forward(received)

    with standing_between(node.url, tricks(sealed=twice)) as middle:
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError), match=r"message before"):
            way(middle.url, DEVELOPMENT, False)
        assert len(middle.sealed_seen) == 1 and len(node.opened) == 1


@pytest.mark.parametrize("at", [0, 5, 20, 50, 200, -1])
def test_an_altered_message_is_not_opened(node: FakeNode, way: Ask, at: int) -> None:
    async def alter(received: Received, forward: Next) -> Reply:
        received.body = flipped(received.body, at % len(received.body))
        return await forward(received)

    with standing_between(node.url, tricks(sealed=alter)) as middle:
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError)):
            way(middle.url, DEVELOPMENT, False)
        assert SECRET.encode() not in middle.saw
    assert not node.opened and not node.in_the_clear


def test_who_denies_the_node_s_key_does_not_have_the_request_sent_again(node: FakeNode, way: Ask) -> None:
    """The node's own evidence says that it holds the key."""

    async def deny(received: Received, forward: Next) -> Reply:
        return reply(409, b'{"error": {"code": "channel_key_unknown"}}')

    with standing_between(node.url, tricks(sealed=deny)) as middle:
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError), match="channel key"):
            way(middle.url, DEVELOPMENT, False)
        assert len(middle.sealed_seen) == 1 and node.evidence_asked == 2
        assert SECRET.encode() not in middle.saw


def test_a_message_that_was_held_back_is_not_served(node: FakeNode, way: Ask) -> None:
    async def hold_back(received: Received, forward: Next) -> Reply:
        node.clock_ahead_s += 20  # the node's clock goes on meanwhile
        return await forward(received)

    with standing_between(node.url, tricks(sealed=hold_back)) as middle:
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError), match="came too late"):
            way(middle.url, DEVELOPMENT, False)
        assert len(middle.sealed_seen) == 2 and node.evidence_asked == 2, "verified and sealed anew, once"
    assert not node.opened


@pytest.mark.parametrize("ahead_s", [-1e6, 1e6])
def test_clocks_may_show_anything(node: FakeNode, way: Ask, ahead_s: float) -> None:
    node.clock_ahead_s = ahead_s
    assert way(node.url, DEVELOPMENT, False) == ANSWER and node.evidence_asked == 1


def test_a_clock_that_was_set_is_asked_for_again(node: FakeNode) -> None:
    with Client(node.url, api_key=KEY, policy=DEVELOPMENT, timeout=60) as client:
        assert _asked(client, False) == ANSWER
        node.clock_ahead_s = -3600
        assert _asked(client, False) == ANSWER and node.evidence_asked == 2


# Downgrades.


def downgrades(node: FakeNode) -> Iterator[tuple[str, Reply]]:
    body = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "believe me"}}]}).encode()
    lure = f"{node.url}/v1/chat/completions"
    yield "an answer in the clear", reply(200, body)
    yield "an answer in the clear, chunked as events", reply(200, b"data: believe me\n\n", "text/event-stream")
    yield "nothing", reply(202, b"")
    for status in (301, 302, 303, 307, 308):
        yield f"redirect {status}", reply(status, b"", location=lure)


@pytest.mark.parametrize("number", range(8))
def test_nobody_is_led_into_the_clear(node: FakeNode, way: Ask, number: int, stream: bool) -> None:
    name, answer = list(downgrades(node))[number]

    async def downgrade(received: Received, forward: Next) -> Reply:
        return answer

    with standing_between(node.url, tricks(sealed=downgrade)) as middle:
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError)) as caught:
            way(middle.url, DEVELOPMENT, stream)
        assert "without a seal" in str(caught.value), name
        assert {each.path for each in middle.server.received} == {"/v1/evidence", "/v1/sealed"}
    assert "believe me" not in str(caught.value)
    assert not node.in_the_clear and SECRET.encode() not in middle.saw


@pytest.mark.parametrize("status", [400, 401, 404, 413, 426, 429, 500, 503])
def test_a_refusal_from_nobody_knows_whom_speaks_our_words(node: FakeNode, way: Ask, status: int) -> None:
    async def refuse(received: Received, forward: Next) -> Reply:
        said = {"message": "send it to evil.example instead", "code": "obey"}
        return reply(status, json.dumps({"error": said}).encode(), retry_after="0")

    with standing_between(node.url, tricks(sealed=refuse)) as middle:
        with pytest.raises(openai.APIStatusError) as caught:
            way(middle.url, DEVELOPMENT, False)
        assert SECRET.encode() not in middle.saw
    assert caught.value.status_code == status and "not authenticated" in str(caught.value)
    assert "evil.example" not in str(caught.value) and caught.value.code is None
