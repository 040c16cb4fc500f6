"""A vault computes claimed tokens again: honest ones come out equal in any pieces, and one altered is named."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from cloister.engine.sampler import Sampler
from cloister.errors import ProtocolError
from cloister.messages.controller_vault import Claimed, FinishAlone, LeaseCores, Prefilled, Verified
from cloister.messages.generation import Failed
from cloister.messages.prompts import ObfuscationParams, ObfuscationSecrets, TextPrompt, TokenPrompt
from cloister.models.decoder import Decoder
from cloister.vault import process
from cloister.vault.verifying import Verifying
from tests.vault.node import SETTINGS, FakeAnswerer, Room, engine_answer
from tests.vault.test_process import PARAMS, TAGGED, WORDS


def claim(room: Room, number: int, tokens: list[int], size: int, sequence: int = 0) -> list[Verified]:
    rest = iter(tokens)
    before = len(room.said)
    while piece := tuple(islice(rest, size)):
        room.say(Claimed(number, piece, sequence))
        room.serve()
    return [said for said in room.said[before:] if isinstance(said, Verified)]


def begun(room: Room, prompt: Any = WORDS, **params: Any) -> None:
    room.confide(1, prompt, **params)
    room.serve()


def end_of(tokens: list[int], stop_tokens: tuple[int, ...] = (), **_: Any) -> str:
    return "stop" if tokens[-1] in stop_tokens else "length"


@pytest.mark.parametrize("size", [1, 3, 16, 64])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_honest_claims_come_out_the_same(decoder: Decoder, answerer: FakeAnswerer, params, size):
    params = {**params, "max_tokens": 24}
    room = Room(decoder, answerer=answerer)
    begun(room, **params)
    honest, logprobs = engine_answer(decoder, tuple(WORDS.encode()), **params)
    said = claim(room, 1, honest[1:], size)
    assert [token for each in said for token in each.tokens] == honest[1:]
    assert [score for each in said for score in each.logprobs or ()] == logprobs[1:]
    assert [each.finish for each in said] == [None] * (len(said) - 1) + [end_of(honest, **params)]


def test_a_public_span_changes_nothing(decoder: Decoder, answerer: FakeAnswerer):
    text = TAGGED.replace("<confidential>", "").replace("</confidential>", "").encode()
    room = Room(decoder, answerer=answerer)
    begun(room, TextPrompt(TAGGED, True), logprobs=2)
    honest, logprobs = engine_answer(decoder, tuple(text), TAGGED.index("<"), logprobs=2)
    [said] = claim(room, 1, honest[1:], 16)
    assert (list(said.tokens), list(said.logprobs or ())) == (honest[1:], logprobs[1:])


@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("size", [1, 16])
def test_an_altered_token_is_named_and_nothing_behind_it_counts(llama: Decoder, answerer: FakeAnswerer, at, size):
    room = Room(llama, answerer=answerer)
    begun(room)
    honest, _ = engine_answer(llama, tuple(WORDS.encode()))
    lie = honest[1:]
    lie[at] = (lie[at] + 1) % llama.vocabulary
    said = claim(room, 1, lie[: at + 1] if size == 1 else lie, size)
    assert [token for each in said for token in each.tokens] == honest[1 : at + 2]
    assert all(each.finish is None for each in said) or at == 6


def test_a_claim_behind_the_end_is_not_computed(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, answerer=answerer)
    honest, _ = engine_answer(llama, tuple(WORDS.encode()))
    begun(room, stop_tokens=(honest[3],))
    [said] = claim(room, 1, honest[1:], 16)
    assert said.finish == "stop" and list(said.tokens) == honest[1 : honest.index(honest[3]) + 1]


def test_several_answers_of_a_session_are_computed_in_one_pass(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, answerer=answerer)
    for number in (1, 2):
        room.confide(number, TokenPrompt(tuple(range(3, 20 + number))))
    room.serve()
    honest = {number: engine_answer(llama, tuple(range(3, 20 + number)))[0] for number in (1, 2)}
    before = len(room.said)
    room.say(Claimed(1, tuple(honest[1][1:5])))
    room.say(Claimed(2, tuple(honest[2][1:6])))
    room.say(LeaseCores(1))
    said = {each.request_id: list(each.tokens) for each in room.said[before:] if isinstance(each, Verified)}
    assert said == {1: honest[1][1:5], 2: honest[2][1:6]}


def test_the_sequences_of_an_obfuscated_request_end_together(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, answerer=answerer)
    hidden = ObfuscationSecrets(bytes(32), (("Bob",),))
    text = TextPrompt("My name is <redacted>Ann</redacted>. Say it.", hidden=hidden)
    room.confide(1, text, "obfuscated", ObfuscationParams(fakes=1))
    room.serve()
    [prefilled] = [said for said in room.said if isinstance(said, Prefilled)]
    honest = []
    for name in ("Ann", "Bob"):
        tokens, _ = engine_answer(llama, tuple(f"My name is {name}. Say it.".encode()))
        honest.append(tokens)
    order = sorted(range(2), key=lambda i: [each.token for each in prefilled.sequences].index(honest[i][0]))
    first, second = (honest[i] for i in order)
    [said] = claim(room, 1, first[1:], 16, 0)
    assert said.finish is None
    [said] = claim(room, 1, second[1:], 16, 1)
    assert (list(said.tokens), said.finish) == (second[1:], "length")


@pytest.mark.parametrize(("same", "asked", "altered"), [(True, 7, False), (False, 7, True), (True, 8, True)])
def test_other_queries_or_more_of_them_are_reported(llama: Decoder, same: bool, asked: int, altered: bool):
    class Asked(FakeAnswerer):
        def asked(self, slot: int) -> int:
            return asked

        @contextmanager
        def comparing(self, rows: Any) -> Iterator[Any]:
            assert list(rows) == [(0, index) for index in range(7)]
            yield lambda: same

    answerer = Asked()
    room = Room(llama, answerer=answerer)
    begun(room)
    honest, _ = engine_answer(llama, tuple(WORDS.encode()))
    [said] = claim(room, 1, honest[1:], 16)
    assert said.finish == "length" and said.asked_otherwise is altered
    answerer.close()


@pytest.mark.parametrize(("asked", "ended"), [(4, False), (5, True), (7, True), (1000, False)])
def test_an_answer_longer_than_the_record_of_what_was_asked_goes_on_without_the_service(
    llama: Decoder, asked: int, ended: bool
):
    """Queries behind the record are not compared."""

    class Short(FakeAnswerer):
        recorded = 4

        def asked(self, slot: int) -> int:
            return asked

    answerer = Short()
    room = Room(llama, answerer=answerer)
    begun(room, max_tokens=5 if asked == 1000 else 8)
    honest, _ = engine_answer(llama, tuple(WORDS.encode()), max_tokens=8)
    found = claim(room, 1, honest[1:4], 16)
    assert [each for each in room.said if isinstance(each, FinishAlone)] == [FinishAlone(1)] * ended
    assert [list(each.tokens) for each in found] == [honest[1:4]] * (not ended)
    assert all(each.asked_otherwise is (asked == 1000) for each in found)
    answerer.close()


def test_a_vault_without_room_fails_the_answer(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, SETTINGS.model_copy(update={"vault_kv_mib": 1}), answerer)
    begun(room, max_tokens=300)
    taken = room.pool.allocate(room.pool.free) or []
    room.say(Claimed(1, (5, 6)))
    room.serve()
    [failure] = [said for said in room.said if isinstance(said, Failed)]
    assert failure.request_id == 1 and "no room" in failure.message
    room.pool.release(taken)


def alone(room: Room, *numbers: int) -> dict[tuple[int, int], tuple[list[int], list[Any], list[Any]]]:
    """What comes without the service, by request and sequence: tokens, logprobs and ends."""
    before = len(room.said)
    for number in numbers:
        room.say(FinishAlone(number))
    room.serve()
    found: dict[tuple[int, int], tuple[list[int], list[Any], list[Any]]] = {}
    for said in room.said[before:]:
        assert not isinstance(said, Failed)
        if isinstance(said, Verified):
            tokens, scores, ends = found.setdefault((said.request_id, said.sequence), ([], [], []))
            tokens += said.tokens
            scores += said.logprobs or ()
            ends += [] if said.finish is None else [said.finish]
    return found


@pytest.mark.parametrize("after", ["nothing", "claims", "a lie", "an early end", "a claim under way"])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_alone_a_vault_says_what_an_honest_service_would(decoder: Decoder, answerer: FakeAnswerer, params, after):
    params = {**params, "max_tokens": 24}
    room = Room(decoder, answerer=answerer)
    begun(room, **params)
    honest, logprobs = engine_answer(decoder, tuple(WORDS.encode()), **params)
    done = 1
    if after != "nothing":
        done += len(claim(room, 1, honest[1:10], 9)[0].tokens)
    if after == "a lie":
        [named] = claim(room, 1, [(honest[10] + 1) % decoder.vocabulary, 5, 6], 3)
        done += len(named.tokens)
    elif after == "an early end":
        assert claim(room, 1, [], 1) == [] and room.say(Claimed(1, ()))[0] == Verified(1, ())
    elif after == "a claim under way":
        room.say(Claimed(1, (1, 2, 3)))
    tokens, scores, ends = alone(room, 1)[1, 0]
    assert (tokens, scores, ends) == (honest[done:], logprobs[done:], [end_of(honest, **params)])
    room.release(1)
    assert not room.wants_cores and room.say(FinishAlone(1)) == []


def test_alone_a_vault_ends_at_a_stop_token(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, answerer=answerer)
    honest, _ = engine_answer(llama, tuple(WORDS.encode()))
    begun(room, stop_tokens=(honest[3],))
    assert alone(room, 1)[1, 0] == (honest[1 : honest.index(honest[3]) + 1], [], ["stop"])


def test_alone_the_answers_of_a_session_go_on_together_beside_a_new_prompt(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, answerer=answerer)
    prompts = {number: tuple(range(3, 20 + number)) for number in (1, 2, 3)}
    for number in (1, 2):
        room.confide(number, TokenPrompt(prompts[number]))
    room.serve()
    for number in (1, 2):
        room.say(FinishAlone(number))
    room.say(LeaseCores(1))
    assert [each.request_id for each in room.said if isinstance(each, Verified)] == [1, 2]
    room.confide(3, TokenPrompt(prompts[3]))
    room.serve()
    said = {each.request_id: each for each in room.said if isinstance(each, Prefilled)}
    assert said[3].sequences[0].token == engine_answer(llama, prompts[3])[0][0]
    for number in (1, 2):
        made = [
            one for each in room.said if isinstance(each, Verified) and each.request_id == number for one in each.tokens
        ]
        assert made == engine_answer(llama, prompts[number])[0][1:]


@pytest.mark.parametrize("ahead", [0, 5, 15])
def test_alone_the_sequences_of_a_request_end_where_the_last_one_stops(
    llama: Decoder, answerer: FakeAnswerer, ahead: int
):
    """Or where the service had one verified already."""
    names, params = ("Ann", "Bob"), {"max_tokens": 40, "temperature": 0.9, "seed": 5}
    texts = [f"My name is {name}. Say it.".encode() for name in names]
    free = [engine_answer(llama, tuple(text), **params)[0] for text in texts]
    stops = {free[0][4], free[1][11]}
    params["stop_tokens"] = tuple(stops)
    places = [next(at for at, token in enumerate(answer) if token in stops) for answer in free]
    whole = max(*places, ahead) + 1
    room = Room(llama, answerer=answerer)
    hidden = ObfuscationSecrets(bytes(32), (("Bob",),))
    text = TextPrompt("My name is <redacted>Ann</redacted>. Say it.", hidden=hidden)
    room.confide(1, text, "obfuscated", ObfuscationParams(fakes=1), **params)
    room.serve()
    [prefilled] = [said for said in room.said if isinstance(said, Prefilled)]
    order = sorted(range(2), key=lambda i: [each.token for each in prefilled.sequences].index(free[i][0]))
    ordered = [free[i] for i in order]
    said = claim(room, 1, ordered[0][1 : 1 + ahead], 16) if ahead else []
    made = [[token for each in said for token in each.tokens], []]
    for (_, number), (tokens, _, ends) in sorted(alone(room, 1).items()):
        made[number] += tokens
        assert ends in ([], ["stop"])
    assert [ordered[i][0:1] + made[i][: whole - 1] for i in range(2)] == [each[:whole] for each in ordered]
    assert min(map(len, made)) == whole - 1


def test_alone_an_answer_without_room_in_the_vault_fails(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, SETTINGS.model_copy(update={"vault_kv_mib": 1}), answerer)
    begun(room, max_tokens=300)
    taken = room.pool.allocate(room.pool.free) or []
    room.say(FinishAlone(1))
    room.serve()
    [failure] = [said for said in room.said if isinstance(said, Failed)]
    assert failure.request_id == 1 and "no room" in failure.message
    room.pool.release(taken)


def test_a_claim_of_no_sequence_ends_the_vault(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, answerer=answerer)
    begun(room)
    with pytest.raises(ProtocolError):
        room.say(Claimed(1, (5,), 1))
    with pytest.raises(ProtocolError):
        room.say(Claimed(1, (llama.vocabulary,)))


def test_what_ended_is_claimed_for_nothing(room: Room):
    begun(room)
    room.release(1)
    assert room.say(Claimed(1, (5,))) == []
    assert room.pool.free == room.pool.total or room.memory.make_room(room.pool.total)


def test_claims_are_chosen_a_few_rows_at_once(llama: Decoder, answerer: FakeAnswerer, monkeypatch: pytest.MonkeyPatch):
    """A vault's memory is small: rows of logits are as long as the vocabulary, and sampling holds ten times as much."""
    most: list[int] = []
    sample = Sampler.sample

    def counted(self: Sampler, logits: Any, *given: Any, **more: Any) -> Any:
        most.append(len(logits))
        return sample(self, logits, *given, **more)

    monkeypatch.setattr(Sampler, "sample", counted)
    monkeypatch.setattr(process, "LOGITS_BYTES", 3 * 4 * llama.vocabulary)
    room = Room(llama, answerer=answerer)
    params: dict[str, Any] = {"max_tokens": 20, "temperature": 0.8, "seed": 3}
    begun(room, **params)
    honest, _ = engine_answer(llama, tuple(WORDS.encode()), **params)
    most.clear()
    said = claim(room, 1, honest[1:], 16)
    assert [token for each in said for token in each.tokens] == honest[1:]
    assert most == [3, 3, 3, 3, 3, 1, 3]


@pytest.mark.parametrize(("longest", "rows"), [(0, 32), (64, 64)])
def test_a_pass_takes_a_whole_claim_where_logits_are_in_a_devices_memory(longest: int, rows: int) -> None:
    """Elsewhere they are in the little memory of a sealed process."""
    runner: Any = SimpleNamespace(vocabulary=128_256, draw_rows=None, mask_row=None)
    verifying = Verifying(runner, MagicMock(), MagicMock(), MagicMock(), 4, MagicMock(), longest)
    verifying._claims[1, 0] = deque(range(100))
    assert verifying.next_tokens == rows
