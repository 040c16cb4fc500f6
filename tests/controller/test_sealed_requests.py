"""Sealed requests at the controller: each key goes to one process, each message is taken once, and nothing is kept."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from cloister.channel.envelope import Envelope
from cloister.channel.sealing import (
    RequestKeys,
    address_to,
    key_id,
    open_prompt,
    open_request,
    seal_prompt,
    seal_request,
)
from cloister.controller import sealed_requests as secure
from cloister.controller.channel_keys import ChannelKeys
from cloister.controller.requests import wide
from cloister.controller.sealed_requests import SealedRequests
from cloister.errors import ProtocolError, QueueFull, ServiceUnavailable
from cloister.messages.controller_frontend import Ask, BytesTaken, CancelSealed, SealedPart
from cloister.messages.controller_gateway import FromGateway, Sealed
from cloister.messages.controller_sealed_api import AskSealed, ErrorReport, Serve, ToSealedApi
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.messages.prompts import LockedPrompt, SealedPrompt
from cloister.messages.types import SamplingParams
from tests.controller.fakes import Inbox, Node

SECRET = b'"a secret of the user"'
GATEWAY = 5


class Wire(Inbox):
    """A frontend whose messages went over the wire, so that nobody shares memory with the sender."""

    def __init__(self, union: object | None = None) -> None:
        super().__init__()
        self._frames = None if union is None else FrameReader[msgspec.Struct](union)

    def send(self, message: msgspec.Struct) -> None:
        if self._frames is None:
            self.put(message)
        else:
            for each in self._frames.feed(encode_frame((message,))):
                self.put(each)

    send_soon = send


def sealed_to(public: bytes, *prompts: bytes, request: bytes = b"inner") -> tuple[bytes, bytes, RequestKeys]:
    """An envelope as a client makes it; its enc and keys."""
    enc, keys = address_to(public)
    parts = tuple(seal_prompt(keys.prompt, enc, index, prompt) for index, prompt in enumerate(prompts))
    return Envelope(key_id(public), enc, seal_request(keys.request, enc, request), parts).encode(), enc, keys


class Room:
    """A desk between a gateway and a sealed API."""

    def __init__(self, limit: int = 1000) -> None:
        self.keys = ChannelKeys(limit)
        self.desk = SealedRequests(self.keys)
        self.gateway, self.sealed_api = Wire(), Wire(ToSealedApi)
        self.desk.sealed_api_up(self.sealed_api)

    def hand_in(self, number: int, envelope: bytes) -> None:
        self.desk.accept(GATEWAY, self.gateway, Sealed(number, envelope))

    def serve(self, number: int, *prompts: bytes) -> tuple[Serve, bytes, RequestKeys]:
        envelope, enc, keys = sealed_to(self.keys.public, *prompts)
        self.hand_in(number, envelope)
        return self.sealed_api.messages.pop(0), enc, keys

    def refusal(self) -> Failed:
        [failed] = self.gateway.messages
        self.gateway.messages.clear()
        assert isinstance(failed, Failed) and not self.sealed_api.messages
        return failed


@pytest.fixture
def room() -> Room:
    return Room()


def named(serve: Serve, index: int = 0, field: Any = "prompt") -> SealedPrompt:
    return SealedPrompt(serve.request_id, index, field)


def test_each_key_goes_to_the_process_that_is_to_have_it(room: Room) -> None:
    serve, enc, keys = room.serve(1, SECRET, b"[1]")
    assert (serve.enc, serve.prompts) == (enc, 2)
    assert (serve.request_key, serve.response_key) == (keys.request, keys.response)
    assert open_request(serve.request_key, enc, serve.request) == b"inner"
    assert bytes(keys.prompt) not in msgspec.msgpack.encode(serve)
    for index, prompt in enumerate((SECRET, b"[1]")):
        locked = room.desk.lock(named(serve, index), "ann")
        assert (locked.key, locked.index, locked.field) == (keys.prompt, index, "prompt")
        assert open_prompt(locked.key, locked.enc, locked.index, locked.data) == prompt
        for other in (keys.request, keys.response):
            assert bytes(other) not in msgspec.msgpack.encode(locked)


def test_prompts_and_their_key_are_forgotten_when_the_answer_begins(room: Room) -> None:
    serve, _, _ = room.serve(1, SECRET)
    kept = room.desk._requests[serve.request_id]
    room.desk.from_sealed_api(SealedPart(serve.request_id, b"head"))
    assert kept.prompts == () and kept.prompt_key == bytes(32)
    with pytest.raises(ServiceUnavailable):
        room.desk.lock(named(serve), "ann")


@pytest.mark.parametrize("code", ["channel_broken", "message_expired", "internal_error", "secret", "invalid_request"])
def test_nothing_that_the_sealed_api_wrote_leaves_in_the_clear(room: Room, code: str) -> None:
    serve, _, _ = room.serve(1, SECRET)
    room.desk.from_sealed_api(Failed(serve.request_id, code, "secret", retry_after=7, param="secret"))
    told = room.refusal()
    assert told.request_id == 1 and told.code in ("channel_broken", "message_expired", "internal_error")
    assert "secret" not in (told.code, told.param) and "secret" not in told.message and told.retry_after == 0


def test_what_it_logs_is_a_kind_and_no_text() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"type": "mishap", "kind": "0xsecret"}), type=ErrorReport)


@pytest.mark.parametrize("how", ["end", "fail", "leave", "gateway", "sealed_api"])
def test_nothing_is_kept_of_a_request_that_ended(room: Room, how: str) -> None:
    serve, _, _ = room.serve(1, SECRET)
    kept = room.desk._requests[serve.request_id]
    match how:
        case "end":
            room.desk.from_sealed_api(SealedPart(serve.request_id, b"all", end=True))
        case "fail":
            room.desk.from_sealed_api(Failed(serve.request_id, "channel_broken", "No."))
        case "leave":
            room.desk.leave(GATEWAY, CancelSealed(1))
        case "gateway":
            room.desk.gateway_gone(GATEWAY)
        case "sealed_api":
            room.desk.sealed_api_gone()
    assert not room.desk._requests and not +room.desk._bytes and not +room.desk._count
    assert kept.prompts == () and kept.prompt_key == bytes(32)


def test_parts_find_their_way_back_by_the_gateways_own_number(room: Room) -> None:
    first, _, _ = room.serve(1)
    second, _, _ = room.serve(2)
    assert first.request_id == wide(GATEWAY, 1) != second.request_id
    room.desk.from_sealed_api(SealedPart(second.request_id, b"two"))
    room.desk.from_sealed_api(SealedPart(first.request_id, b"1" * 100_000, end=True))
    room.desk.from_sealed_api(SealedPart(first.request_id, b"after its end"))
    assert room.gateway.messages == [SealedPart(2, b"two"), SealedPart(1, b"1" * 100_000, end=True)]
    room.desk.taken(GATEWAY, BytesTaken(2, 77))
    room.desk.taken(GATEWAY, BytesTaken(1, 77))
    assert room.sealed_api.messages == [BytesTaken(second.request_id, 77)]


def test_a_message_is_taken_once(room: Room) -> None:
    envelope, _, _ = sealed_to(room.keys.public)
    room.hand_in(1, envelope)
    room.sealed_api.messages.clear()
    room.hand_in(2, envelope)
    assert room.refusal().code == "message_repeated"
    changed = Envelope.decode(envelope)
    again = Envelope(changed.key_id, changed.enc, bytes(len(changed.request))).encode()
    room.hand_in(3, again)  # other words under the same keys
    assert room.refusal().code == "message_repeated"


def test_another_nodes_key_is_unknown(room: Room) -> None:
    room.hand_in(1, sealed_to(ChannelKeys().public)[0])
    assert room.refusal().code == "channel_key_unknown"


@pytest.mark.parametrize("envelope", [b"", b"CLOI", b"x" * 1000, "point", "cut"])
def test_what_is_no_envelope_is_refused(room: Room, envelope: Any) -> None:
    whole = sealed_to(room.keys.public)[0]
    if envelope == "point":
        read = Envelope.decode(whole)
        envelope = Envelope(read.key_id, bytes(32), read.request).encode()  # a point of low order
    elif envelope == "cut":
        envelope = whole[:-1]
    room.hand_in(1, envelope)
    assert room.refusal().code == "channel_broken"


def test_a_prompt_that_no_vault_would_take_reaches_none(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure, "MAX_SEALED_PROMPT_BYTES", 1000)
    room.hand_in(1, sealed_to(room.keys.public, b"x" * 1000)[0])
    assert room.refusal().code == "context_length_exceeded"


def test_without_a_sealed_api_nothing_is_taken_and_all_under_way_fails(room: Room) -> None:
    room.serve(1)
    room.serve(2)
    room.desk.sealed_api_gone()
    assert [(one.request_id, one.code) for one in room.gateway.messages] == [
        (1, "service_unavailable"),
        (2, "service_unavailable"),
    ]
    room.gateway.messages.clear()
    envelope, _, _ = sealed_to(room.keys.public)
    room.hand_in(3, envelope)
    assert room.refusal().code == "service_unavailable"
    room.desk.sealed_api_up(room.sealed_api)
    room.hand_in(4, envelope)  # it was not taken before
    assert isinstance(room.sealed_api.messages[0], Serve)


def test_a_user_who_leaves_is_told_to_the_sealed_api(room: Room) -> None:
    serve, _, _ = room.serve(1)
    room.desk.leave(GATEWAY, CancelSealed(1))
    room.desk.leave(GATEWAY, CancelSealed(1))
    assert room.sealed_api.messages == [CancelSealed(serve.request_id)]
    room.desk.from_sealed_api(SealedPart(serve.request_id, b"late"))
    assert not room.gateway.messages


def test_what_a_tenant_parks_keeps_no_other_out(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is known whose a request is, it counts as theirs alone."""
    sealed = len(room.desk._requests[room.serve(0, SECRET)[0].request_id].prompts[0])
    monkeypatch.setattr(secure, "MAX_UNKNOWN_BYTES", 2 * sealed)
    monkeypatch.setattr(secure, "MAX_BYTES_OF_ONE", 3 * sealed)
    parked = [room.serve(number, SECRET)[0] for number in (1,)]
    for number in range(2, 5):
        room.desk.lock(named(parked[-1]), "floods")
        parked.append(room.serve(number, SECRET)[0])
    with pytest.raises(QueueFull, match="your"):
        room.desk.lock(named(parked[-1]), "floods")
    room.desk.lock(named(parked[-1]), "modest")
    with pytest.raises(ProtocolError):
        room.desk.lock(named(parked[-1]), "floods")
    room.desk.from_sealed_api(SealedPart(parked[0].request_id, b"begins"))
    room.desk.lock(named(room.serve(9, SECRET)[0]), "floods")


@pytest.mark.parametrize("of", ["floods", "token-{:032x}"], ids=["a key", "tokens"])
def test_a_tenant_has_only_so_many(room: Room, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    monkeypatch.setattr(secure, "MAX_REQUESTS_OF_ONE", 2)
    served = [room.serve(number, SECRET)[0] for number in range(3)]
    for number, serve in enumerate(served[:2]):
        room.desk.lock(named(serve), of.format(number))
    with pytest.raises(QueueFull):
        room.desk.lock(named(served[2]), of.format(2))
    room.desk.leave(GATEWAY, CancelSealed(0))
    room.desk.lock(named(served[2]), of.format(2))


def test_only_so_much_of_who_knows_whom_is_held_back(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    envelope, _, _ = sealed_to(room.keys.public, SECRET)
    serve, _, _ = room.serve(1, SECRET)
    monkeypatch.setattr(secure, "MAX_UNKNOWN_BYTES", 2 * room.desk._requests[serve.request_id].bytes)
    room.serve(2, SECRET)
    room.hand_in(3, envelope)
    failed = room.refusal()
    assert failed.code == "queue_full" and failed.retry_after > 0
    room.desk.from_sealed_api(SealedPart(serve.request_id, b"begins"))
    room.gateway.messages.clear()
    room.hand_in(4, envelope)
    assert not room.gateway.messages


def test_a_sealed_api_that_names_what_did_not_come_has_broken_the_rules(room: Room) -> None:
    serve, _, _ = room.serve(1, SECRET)
    with pytest.raises(ProtocolError):
        room.desk.lock(named(serve, 1), "ann")


def test_keys_and_prompts_are_in_no_repr_and_no_log(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    serve, _, keys = room.serve(1, SECRET)
    locked = room.desk.lock(named(serve), "ann")
    shown = f"{serve} {locked} {room.desk._requests} {Sealed(1, SECRET)} {SealedPart(1, SECRET)}"
    for secret in (SECRET, keys.request, keys.response, keys.prompt):
        assert repr(bytes(secret))[2:-1] not in shown + caplog.text


# ---- with the relay


@pytest.fixture
async def node(room: Room) -> AsyncIterator[Node]:
    """One vault at a time; its frontend plays the sealed API."""
    node = await Node.build(room.desk.lock, spare_vaults=0, max_vaults=1)
    yield node
    node.close()


def ask(number: int, session: str, prompt: SealedPrompt) -> AskSealed:
    return AskSealed(Ask(number, "ann", "isolated", session, False, b"", SamplingParams()), prompt)


async def test_a_vault_gets_prompt_and_key_together(room: Room, node: Node) -> None:
    serve, _, keys = room.serve(1, SECRET)
    node.send(ask(9, "s", named(serve)))
    confide = await (await node.vault(0)).next(AssignPrompt)
    assert isinstance(confide.prompt, LockedPrompt) and confide.prompt.key == keys.prompt
    assert open_prompt(confide.prompt.key, confide.prompt.enc, 0, confide.prompt.data) == SECRET


async def test_who_waits_for_a_vault_still_has_the_key_when_one_is_free(room: Room, node: Node) -> None:
    """Its answer's other choices may have begun: the desk has forgotten the prompt by then."""
    serve, _, _ = room.serve(1, SECRET, SECRET)
    node.send(ask(1, "one", named(serve, 0)))
    node.send(ask(2, "two", named(serve, 1)))
    first = await (await node.vault(0)).next(AssignPrompt)
    room.desk.from_sealed_api(SealedPart(serve.request_id, b"head"))
    (await node.vault(0)).say(PromptAccepted(first.request_id, 3), Tokens(first.request_id, (4,), finish="stop"))
    second = await (await node.vault(1)).next(AssignPrompt)
    assert isinstance(second.prompt, LockedPrompt)
    assert open_prompt(second.prompt.key, second.prompt.enc, 1, second.prompt.data) == SECRET


async def test_a_prompt_of_a_request_that_has_ended_fails_its_asker_only(room: Room, node: Node) -> None:
    serve, _, _ = room.serve(1, SECRET)
    room.desk.leave(GATEWAY, CancelSealed(1))
    node.send(ask(1, "one", named(serve)))
    assert (await node.failure()).code == "service_unavailable"
    node.send(Cancel(1))


async def test_a_vault_that_cannot_open_a_prompt_fails_that_request(room: Room, node: Node) -> None:
    serve, _, _ = room.serve(1, SECRET)
    node.send(ask(1, "one", named(serve)))
    vault = await node.vault(0)
    confide = await vault.next(AssignPrompt)
    vault.say(Failed(confide.request_id, "channel_broken", "A prompt was altered."))
    assert (await node.failure(Accepted)).code == "channel_broken"


def test_a_gateway_cannot_even_say_that_it_wants_the_answer_to_a_sealed_prompt() -> None:
    message = ask(1, "one", SealedPrompt(wide(GATEWAY, 1), 0, "prompt"))
    with pytest.raises(ProtocolError):
        FrameReader[msgspec.Struct](FromGateway).feed(encode_frame((message,)))
    assert AskSealed not in FromGateway.__args__  # type: ignore[attr-defined]
