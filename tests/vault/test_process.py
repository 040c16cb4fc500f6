"""A vault, spoken to as the controller does: the engine's own answers, the cores's rules, and nothing left behind."""

from __future__ import annotations

import socket
import threading
from unittest.mock import MagicMock

import msgspec
import pytest

from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.errors import ProtocolError
from cloister.levels import MOST_FAKES, VaultLevel
from cloister.messages.controller_vault import (
    AssignPrompt,
    CoresDone,
    FromVault,
    LeaseCores,
    LinkBroken,
    Prefilled,
    PromptAccepted,
    VaultReady,
    WantCores,
)
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.messages.prompts import (
    ChatPrompt,
    ObfuscationParams,
    ObfuscationSecrets,
    PromptMessage,
    TextPrompt,
    TokenPrompt,
    write_prompt,
)
from cloister.messages.types import VERSION, ExtraAnswer, SamplingParams
from cloister.models.decoder import Decoder
from cloister.prompts.reading import PromptReading
from cloister.vault import process
from tests.vault.node import SETTINGS, ByteTokenizer, Exposed, FakeAnswerer, Room, engine_answer, engine_of, kinds

WORDS = "The quick brown fox jumps over the lazy dog, and then it does so again and again until night falls. "
TAGGED = "You are a helpful assistant.<confidential> My name is on no list</confidential> and so on"

PARAMS = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 11},
    "filtered": {"temperature": 1.3, "top_p": 0.8, "top_k": 40, "min_p": 0.01, "seed": 5},
    "logprobs": {"logprobs": 4, "temperature": 0.7, "seed": 3},
    "biased": {"logit_bias": {7: 30.0, 9: -50.0}},
    "a minimum": {"min_tokens": 12, "stop_tokens": tuple(range(0, 256, 2))},
    "penalised": {"presence_penalty": 1.5, "frequency_penalty": -0.5},
}


@pytest.mark.parametrize("chunk", [1, 16, 37, 512])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_the_first_token_is_the_engines(decoder: Decoder, answerer: FakeAnswerer, params, chunk):
    room = Room(decoder, SETTINGS.model_copy(update={"chunk_tokens": chunk}), answerer)
    assert room.confide(1, WORDS, **params) == PromptAccepted(1, len(WORDS))
    room.serve()
    [token, *_], logprobs = engine_answer(decoder, tuple(WORDS.encode()), **params)
    first = room.first(1)
    assert (first.token, first.max_tokens, first.finish) == (token, 8, None)
    assert first.logprob == (logprobs[0] if logprobs else None)
    assert room.decoder.rows == len(WORDS)


def embedded(room: Room, number: int) -> Tokens:
    room.serve()
    [found] = [m for m in room.said if isinstance(m, Tokens) and m.request_id == number]
    return found


@pytest.mark.parametrize("chunk", [1, 37, 512])
@pytest.mark.parametrize("level", ["partitioned", "isolated"])
def test_an_embedding_is_the_engines_and_made_by_the_vault_alone(decoder: Decoder, level, chunk):
    settings = SETTINGS.model_copy(update={"chunk_tokens": 512})
    engine, params = engine_of(decoder, settings), SamplingParams(max_tokens=0, embed=True)
    engine.submit(EngineRequest(1, "t", tuple(WORDS.encode()), params))
    [expected] = [message for _ in range(len(WORDS)) for message in engine.step()]
    assert isinstance(expected, Tokens)
    answerer = FakeAnswerer()
    room = Room(decoder, SETTINGS.model_copy(update={"chunk_tokens": chunk}), answerer)
    for number in range(3):
        text = WORDS if number == 1 else WORDS[: 20 + number]
        assert room.confide(number, text, level, embed=True, max_tokens=0) == PromptAccepted(number, len(text))
    found = embedded(room, 1)
    assert (found.vector, found.finish, found.tokens) == (expected.vector, "length", ())
    assert len(found.vector) == 4 * decoder.width and embedded(room, 0).vector != found.vector
    assert not answerer.exposed and not [m for m in room.said if isinstance(m, Prefilled)]
    answerer.close()


def test_an_embedding_may_fill_the_context_and_no_more(room: Room):
    longest = "x" * room.decoder.max_context
    assert room.confide(1, longest, "isolated", embed=True, max_tokens=0) == PromptAccepted(1, len(longest))
    assert embedded(room, 1).finish == "length"
    refused = room.confide(2, longest + "x", "isolated", embed=True, max_tokens=0)
    assert isinstance(refused, Failed) and refused.code == "context_length_exceeded"


def test_no_embedding_is_made_among_others(room: Room):
    params = {"embed": True, "max_tokens": 0, "obfuscation": ObfuscationParams()}
    refused = room.confide(1, "I am <redacted>Ann</redacted>.", "obfuscated", **params)
    assert isinstance(refused, Failed) and refused.param == "input" and "not hidden among others" in refused.message


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
def test_a_public_span_changes_nothing_of_the_engines_answer(decoder: Decoder, answerer: FakeAnswerer, level):
    room = Room(decoder, answerer=answerer)
    text = TAGGED.replace("<confidential>", "").replace("</confidential>", "").encode()
    public = TAGGED.index("<")
    room.confide(1, TextPrompt(TAGGED, True), level, temperature=0.8, seed=2, logprobs=2)
    room.serve()
    tokens, logprobs = engine_answer(decoder, tuple(text), public, temperature=0.8, seed=2, logprobs=2)
    if level == "partitioned":
        first = room.first(1)
        assert (first.token, first.logprob) == (tokens[0], logprobs[0])
        assert first.public == tuple(text[:public])
    else:
        assert room.answer(1) == tokens


def test_guesses_at_isolated_save_steps_and_change_nothing(llama: Decoder, answerer: FakeAnswerer) -> None:
    """A long greedy answer of this decoder repeats itself."""
    steps = []
    for guesses in (0, 4):
        room = Room(llama, SETTINGS.model_copy(update={"speculate": guesses}), answerer)
        room.confide(1, WORDS[:20], "isolated", temperature=0.0, max_tokens=100)
        room.serve()
        expected = engine_answer(llama, tuple(WORDS[:20].encode()), temperature=0.0, max_tokens=100)
        assert room.answer(1) == expected[0]
        steps.append(room.vault._isolated.stats().steps)
    assert steps[1] < steps[0]


@pytest.mark.parametrize("guesses", [0, 4])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_isolated_answers_are_the_engines_from_first_to_last(decoder: Decoder, answerer, params, guesses: int):
    room = Room(decoder, SETTINGS.model_copy(update={"speculate": guesses}), answerer)
    for number in range(3):
        assert isinstance(room.confide(number, WORDS[number:], "isolated", max_tokens=12, **params), PromptAccepted)
    room.serve()
    for number in range(3):
        prompt = tuple(WORDS[number:].encode())
        assert room.answer(number) == engine_answer(decoder, prompt, max_tokens=12, **params)[0]
        assert [m.finish for m in room.said if isinstance(m, Tokens) and m.request_id == number][-1] == "length"
    assert answerer.exposed == {}
    room.forget()
    assert room.pool.free == room.pool.total


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
def test_a_seed_that_was_not_named_is_drawn_here(llama: Decoder, room: Room, level):
    for number in (1, 3):
        prompt, params = write_prompt(TextPrompt(WORDS)), SamplingParams(max_tokens=24, seed=None)
        room.say(AssignPrompt(number, level, prompt, params, (ExtraAnswer(number + 1, None),)))
        room.serve()
    if level == "isolated":
        assert len({tuple(room.answer(number)) for number in (1, 2, 3, 4)}) == 4
        return
    drawn = {m.request_id: m for m in room.said if isinstance(m, Prefilled)}
    assert len({m.seed for m in drawn.values()}) == 4
    for m in drawn.values():
        [first, *_], _ = engine_answer(llama, tuple(WORDS.encode()), temperature=1.0, seed=m.seed)
        assert m.sequences[0].token == first


def test_a_repetition_penalty_works_where_the_prompt_is(llama: Decoder, room: Room):
    room.confide(1, WORDS, "isolated", repetition_penalty=1.7)
    room.serve()
    assert room.answer(1) == engine_answer(llama, tuple(WORDS.encode()), repetition_penalty=1.7)[0]
    refused = room.confide(2, WORDS, repetition_penalty=1.7)
    assert isinstance(refused, Failed) and refused.code == "invalid_request" and "repetition" in refused.message
    assert refused.param == "repetition_penalty"


def test_only_the_private_span_is_exposed(room: Room, answerer: FakeAnswerer):
    room.confide(1, TextPrompt(TAGGED, True))
    room.serve()
    first, public = room.first(1), TAGGED.index("<")
    length = len(TAGGED) - len("<confidential></confidential>")
    [(slot, exposed)] = answerer.exposed.items()
    assert first.slot == slot
    assert exposed == Exposed(exposed.blocks, public, length, exposed.rotation)
    assert len(exposed.blocks) == -(-(length - public) // 16) and first.origin + exposed.rotation == length
    assert first.rotation == exposed.rotation


def test_the_length_of_a_prompt_that_is_all_private_is_not_told(room: Room, answerer: FakeAnswerer):
    assert room.decoder.relative
    firsts = []
    for number, text in enumerate((WORDS, WORDS[:40])):
        room.confide(number, text)
        room.serve()
        firsts.append(room.first(number))
    assert {(first.origin, first.rotation, first.public) for first in firsts} == {(0, 0, ())}
    assert [exposed.rotation for exposed in answerer.exposed.values()] == [len(WORDS), 40]


def test_the_next_turn_computes_only_what_is_new_and_says_the_same(decoder: Decoder, answerer: FakeAnswerer):
    room, turns = Room(decoder, answerer=answerer), [WORDS, WORDS * 2, WORDS * 2 + "x", WORDS * 2]
    rows = []
    for number, text in enumerate(turns):
        before = room.decoder.rows
        room.confide(number, text, temperature=0.9, seed=number, logprobs=3)
        room.serve()
        rows.append(room.decoder.rows - before)
        token, logprob = (
            each[0] for each in engine_answer(decoder, tuple(text.encode()), temperature=0.9, seed=number, logprobs=3)
        )
        assert (room.first(number).token, room.first(number).logprob) == (token, logprob)
    length = len(WORDS)
    assert rows == [length, 2 * length - length // 16 * 16, 2 * length + 1 - 2 * length // 16 * 16, rows[3]]
    assert 1 <= rows[3] <= 16


def test_turns_with_the_same_public_span_share_it(decoder: Decoder, answerer: FakeAnswerer):
    room = Room(decoder, answerer=answerer)
    public = "You are a helpful assistant, and patient."
    for number, text in enumerate(("first question", "second question")):
        before = room.decoder.rows
        room.confide(number, TextPrompt(f"{public}<confidential>{text}</confidential>", True))
        room.serve()
        assert room.decoder.rows - before == len(text) + (0 if number else len(public))
        assert room.first(number).token == engine_answer(decoder, tuple((public + text).encode()), len(public))[0][0]


def test_levels_of_one_session_remember_for_each_other(llama: Decoder, room: Room):
    room.confide(1, WORDS)
    room.serve()
    before = room.decoder.rows
    room.confide(2, WORDS + "!", "isolated", max_tokens=5)
    room.serve()
    assert room.decoder.rows - before == len(WORDS) + 1 - len(WORDS) // 16 * 16 + 4
    assert room.answer(2) == engine_answer(llama, tuple((WORDS + "!").encode()), max_tokens=5)[0]


def test_when_the_pool_is_full_the_oldest_memory_goes_and_the_living_stay(llama: Decoder, answerer: FakeAnswerer):
    settings = SETTINGS.model_copy(update={"vault_kv_mib": 1, "chunk_tokens": 512})
    room = Room(llama, settings, answerer)
    blocks = room.pool.total
    for number in range(2 * blocks * 16 // 400):
        room.confide(number, f"{number:03d}" + WORDS * 4)
        room.serve()
        if number:
            room.release(number)
        living = answerer.exposed[room.first(0).slot].blocks
        assert all(room.pool.references(block) > 0 for block in living)
    before = room.decoder.rows
    room.confide(500, "000" + WORDS * 4)
    room.serve()
    assert room.first(500).token == room.first(0).token and room.decoder.rows > before
    room.release(0)
    room.release(500)
    room.forget()
    assert room.pool.free == blocks and answerer.exposed == {}


def test_a_prompt_waits_for_blocks_without_asking_for_cores(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, SETTINGS.model_copy(update={"vault_kv_mib": 1}), answerer)
    each = 400
    fitting = room.pool.total // (each // 16)
    for number in range(fitting + 1):
        assert isinstance(room.confide(number, chr(65 + number) * each), PromptAccepted)
    room.serve()
    assert len(answerer.exposed) == fitting and not room.wants_cores
    room.release(0)
    assert room.wants_cores
    room.serve()
    assert room.first(fitting).token == engine_answer(llama, (65 + fitting,) * each)[0][0]


def test_a_prompt_that_waits_for_blocks_holds_none(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, SETTINGS.model_copy(update={"vault_kv_mib": 1}), answerer)
    for number in range(3):
        room.confide(number, "p" * 32 + chr(65 + number) * 448)
    room.serve()
    assert len(answerer.exposed) == 2 and not room.wants_cores
    for number in (2, 1, 0):
        room.cancel(number)
    room.forget()
    assert room.pool.free == room.pool.total


def test_cores_are_asked_for_once_and_given_back(room: Room):
    assert kinds(room.vault.handle([confide(1, WORDS)])) == ["PromptAccepted", "WantCores"]
    assert kinds(room.vault.handle([confide(2, WORDS[:20])])) == ["PromptAccepted"]
    talk = []
    while (replies := room.vault.handle([LeaseCores(1)])) and len(talk) < 10:
        talk.append(kinds(replies))
        if not isinstance(replies[-1], WantCores):
            break
    chunks = -(-len(WORDS) // SETTINGS.chunk_tokens)
    assert talk == [
        *([["CoresDone", "WantCores"]] * (chunks - 1)),
        ["Prefilled", "CoresDone", "WantCores"],
        ["Prefilled", "CoresDone"],
    ]


def test_a_long_prompt_is_read_in_its_turn_and_not_before(room: Room, monkeypatch: pytest.MonkeyPatch):
    """Another's work goes first; what comes behind it, however short, is not read before it."""
    monkeypatch.setattr(process, "READ_AT_ONCE", process._prompt_bytes(confide(1, WORDS)))
    long = confide(2, "z" * 2 * len(WORDS))
    assert kinds(room.vault.handle([confide(1, WORDS[:20])])) == ["PromptAccepted", "WantCores"]
    assert room.vault.handle([long, confide(3, WORDS[:10])]) == []
    prefilled, done, wanted = room.vault.handle([LeaseCores(1)])
    assert kinds([prefilled, done]) == ["Prefilled", "CoresDone"]
    assert wanted == WantCores(-(-process._prompt_bytes(long) // process.BYTES_LIKE_A_TOKEN), reading=True)
    assert kinds(room.vault.handle([LeaseCores(1, 1)])) == ["PromptAccepted", "CoresDone", "WantCores"]
    assert kinds(room.vault.handle([LeaseCores(1, 1)]))[:2] == ["PromptAccepted", "CoresDone"]
    with pytest.raises(ProtocolError, match="under way"):
        room.vault.handle([long])


def test_an_unread_prompt_is_forgotten_with_the_last_who_wants_it(room: Room, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "READ_AT_ONCE", 0)
    both = msgspec.structs.replace(confide(1, WORDS), also=(ExtraAnswer(2, 5),))
    assert kinds(room.vault.handle([both])) == ["WantCores"]
    with pytest.raises(ProtocolError, match="under way"):
        room.vault.handle([confide(2, WORDS)])
    room.vault.handle([Cancel(1)])
    understood, *_ = room.vault.handle([LeaseCores(1)])
    assert isinstance(understood, PromptAccepted) and understood.request_id == 2
    room.vault.handle([confide(3, WORDS), Cancel(3)])
    assert not room.vault._unread and not room.vault._cancelled
    assert kinds(room.vault.handle([LeaseCores(1, 10)]))[0] == "CoresDone"


def test_cores_are_asked_for_in_the_size_of_the_work(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, SETTINGS.model_copy(update={"chunk_tokens": 80}), answerer)
    room.confide(1, WORDS)
    room.serve()
    room.confide(2, "z" + WORDS[:69], "isolated", max_tokens=3)
    room.serve()
    assert [m.tokens for m in room.said if isinstance(m, WantCores)] == [80, len(WORDS) - 80, 70, 1, 1]


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
def test_no_more_is_computed_than_the_cores_were_given_for(room: Room, level: VaultLevel):
    """And what is answered does not depend on it."""
    whole = Room(room.decoder)
    for each in (whole, room):
        each.confide(1, WORDS, level, max_tokens=3)
    whole.serve()
    for tokens in (5, 1, 9):
        before = room.decoder.rows
        room.say(LeaseCores(1, tokens))
        assert room.decoder.rows - before == tokens
    room.serve()
    if level == "partitioned":
        assert room.first(1) == whole.first(1)
    else:
        assert room.answer(1) == whole.answer(1) and len(room.answer(1)) == 3


def test_cores_given_unasked_end_the_vault(room: Room):
    with pytest.raises(ProtocolError):
        room.say(LeaseCores(1))


def test_an_id_under_way_cannot_come_again(room: Room):
    room.confide(1, WORDS)
    with pytest.raises(ProtocolError):
        room.confide(1, WORDS)
    room.serve()
    with pytest.raises(ProtocolError):
        room.confide(1, WORDS, "isolated")
    room.release(1)
    assert isinstance(room.confide(1, WORDS), PromptAccepted)


BAD = {
    "not msgpack": (b"\xc1 secret", {}, "protocol_error"),
    "another shape": (b"\x81\xa4type\xa6secret", {}, "protocol_error"),
    "an empty text": (write_prompt(TextPrompt("")), {}, "invalid_request"),
    "no token": (write_prompt(TokenPrompt(())), {}, "invalid_request"),
    "an unknown token": (write_prompt(TokenPrompt((5, 301))), {}, "invalid_request"),
    "an open tag": (write_prompt(TextPrompt("a<confidential>secret", True)), {}, "invalid_request"),
    "too long": (write_prompt(TextPrompt("secret" * 400)), {}, "context_length_exceeded"),
    "no room for a token": (write_prompt(TokenPrompt((1,) * 512)), {}, "context_length_exceeded"),
    "an unknown bias": (write_prompt(TextPrompt("secret")), {"logit_bias": {301: 1.0}}, "invalid_request"),
    "logprobs of the prompt": (write_prompt(TextPrompt("secret")), {"prompt_logprobs": 1}, "invalid_request"),
    "no token wanted": (write_prompt(TextPrompt("secret")), {"max_tokens": 0}, "invalid_request"),
    "half a surrogate": (write_prompt(ChatPrompt((PromptMessage("user", "a"),))) + b"\x00", {}, "protocol_error"),
}


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_prompt_fails_with_a_code_and_without_a_word_of_it(room: Room, bad, level):
    data, params, code = bad
    failed = room.confide(1, data, level, **params)
    assert isinstance(failed, Failed) and failed.code == code
    assert "secret" not in failed.message and not room.wants_cores
    assert isinstance(room.confide(1, WORDS, level), PromptAccepted)
    room.serve()
    assert kinds(room.said).count("Failed") == 1


def test_the_answer_ends_where_the_context_ends(llama: Decoder, room: Room):
    prompt = TokenPrompt((3,) * 507)
    room.confide(1, prompt, max_tokens=10_000)
    room.confide(2, prompt, "isolated", max_tokens=10_000)
    room.serve()
    assert room.first(1).max_tokens == 5
    assert room.answer(2) == engine_answer(llama, prompt.tokens, max_tokens=10_000)[0] and len(room.answer(2)) == 5


def test_a_prompt_larger_than_the_vault_is_refused(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, SETTINGS.model_copy(update={"vault_kv_mib": 1}), answerer)
    total = room.pool.total
    assert total * 16 > 512  # so the context would refuse first; hold most of the pool back
    room.memory.pool.total = 4
    failed = room.confide(1, WORDS)
    assert isinstance(failed, Failed) and failed.code == "context_length_exceeded"


@pytest.mark.parametrize("params", [{"max_tokens": 1}, {"stop": True}], ids=["length", "stop"])
def test_an_answer_of_one_token_leaves_nothing_behind(llama: Decoder, room: Room, answerer: FakeAnswerer, params):
    [token, *_], _ = engine_answer(llama, tuple(WORDS.encode()))
    if params.pop("stop", False):
        params = {"stop_tokens": (token,)}
    room.confide(1, WORDS, **params)
    room.serve()
    assert room.first(1).finish == ("stop" if "stop_tokens" in params else "length")
    assert answerer.exposed == {}
    room.release(1)
    room.forget()
    assert room.pool.free == room.pool.total


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
@pytest.mark.parametrize("turns", [0, 1, 2, 4, 6, 9])
def test_cancel_at_every_stage_frees_everything(llama: Decoder, room: Room, answerer: FakeAnswerer, level, turns):
    room.confide(1, WORDS, level)
    room.confide(2, "z" + WORDS, level)
    for _ in range(turns):
        if room.wants_cores:
            room.say(LeaseCores(1))
    room.cancel(1)
    room.cancel(1)
    said = len(room.said)
    room.serve()
    assert not [m for m in room.said[said:] if getattr(m, "request_id", 2) == 1]
    expected = engine_answer(llama, tuple(("z" + WORDS).encode()))[0]
    if level == "partitioned":
        assert room.first(2).token == expected[0] and len(answerer.exposed) == 1
    else:
        assert room.answer(2) == expected
    room.release(2)
    room.forget()
    assert room.pool.free == room.pool.total and answerer.exposed == {}


def test_cores_that_nobody_needs_any_more_are_given_back_at_once(room: Room):
    room.confide(1, WORDS)
    room.cancel(1)
    assert kinds(room.say(LeaseCores(1))) == ["CoresDone"]


def test_choices_of_one_prompt_share_its_blocks(room: Room, answerer: FakeAnswerer):
    for number in range(4):
        room.confide(number, WORDS, temperature=1.0, seed=number)
    room.serve()
    shared = len(WORDS) // 16
    assert len({exposed.blocks[:shared] for exposed in answerer.exposed.values()}) == 1
    assert room.decoder.rows == len(WORDS) + 3 * (len(WORDS) - shared * 16)
    assert len({room.first(number).slot for number in range(4)}) == 4


def test_a_prompt_waits_for_a_slot(llama: Decoder):
    room = Room(llama, answerer=FakeAnswerer(slots=2))
    for number in range(3):
        room.confide(number, WORDS)
    room.serve()
    assert kinds(room.said).count("Prefilled") == 2
    room.release(0)
    room.serve()
    assert room.first(2).slot == room.first(0).slot
    room.answerer.close()


def test_a_full_queue_says_when_to_come_back(llama: Decoder, answerer: FakeAnswerer):
    room = Room(llama, SETTINGS.model_copy(update={"max_waiting_per_tenant": 2}), answerer)
    for number in range(2):
        room.confide(number, WORDS)
    full = room.confide(2, WORDS)
    assert isinstance(full, Failed) and full.code == "queue_full" and full.retry_after >= 1


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
def test_a_failing_computation_fails_its_request_alone(llama: Decoder, room: Room, level):
    room.confide(1, WORDS, level)
    room.decoder.fail_next = RuntimeError("secret words")
    room.serve()
    [failed] = [m for m in room.said if isinstance(m, Failed)]
    assert (failed.request_id, failed.code) == (1, "internal_error") and "secret" not in failed.message
    room.confide(2, WORDS)
    room.serve()
    assert room.first(2).token == engine_answer(llama, tuple(WORDS.encode()))[0][0]
    room.release(2)
    room.forget()
    assert room.pool.free == room.pool.total


def test_running_out_of_memory_ends_the_vault(room: Room):
    room.confide(1, WORDS)
    room.decoder.fail_next = MemoryError()
    with pytest.raises(MemoryError):
        room.serve()


class Wire:
    """A vault running on a socket, as in its process."""

    def __init__(self, room: Room) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(30)
        self._theirs = theirs
        self._frames: FrameReader = FrameReader(FromVault)
        self._pending: list = []
        self.thread = threading.Thread(target=self._run, args=(room,), daemon=True)
        self.thread.start()

    def _run(self, room: Room) -> None:
        with self._theirs:
            room.vault.run(self._theirs)

    def send(self, *messages) -> None:
        self.ours.sendall(encode_frame(messages))

    def handle(self):
        while not self._pending:
            data = self.ours.recv(1 << 16)
            assert data, "the vault hung up"
            self._pending = self._frames.feed(data)
        return self._pending.pop(0)


def confide(number: int, text: str, **params) -> AssignPrompt:
    return AssignPrompt(
        number, "partitioned", write_prompt(TextPrompt(text)), SamplingParams(temperature=0.0, **params)
    )


def test_a_whole_request_over_the_wire_until_the_controller_hangs_up(
    llama: Decoder, room: Room, answerer: FakeAnswerer
):
    wire = Wire(room)
    assert wire.handle() == VaultReady(VERSION)
    wire.send(confide(7, WORDS[:30]))
    assert wire.handle() == PromptAccepted(7, 30)
    assert wire.handle() == WantCores(30)
    wire.send(LeaseCores(1))
    first = wire.handle()
    assert (
        isinstance(first, Prefilled)
        and first.sequences[0].token == engine_answer(llama, tuple(WORDS[:30].encode()))[0][0]
    )
    assert wire.handle() == CoresDone()
    assert not answerer.left
    wire.ours.close()
    wire.thread.join(30)
    assert not wire.thread.is_alive() and answerer.left


def test_a_broken_link_is_reported_once_and_the_vault_goes_on(room: Room, answerer: FakeAnswerer):
    wire = Wire(room)
    assert wire.handle() == VaultReady(VERSION)
    answerer.break_with("link_malformed")
    assert wire.handle() == LinkBroken("link_malformed")
    wire.send(confide(7, WORDS[:30]))
    assert wire.handle() == PromptAccepted(7, 30)
    wire.ours.close()
    wire.thread.join(30)
    assert not wire.thread.is_alive()


def test_a_vault_computes_into_the_cache_that_its_device_gives_vaults_and_answers_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("runner_for", "rehearse_device", "Vault"):
        monkeypatch.setattr(process, name, MagicMock())
    decoder = MagicMock()
    decoder.cache_shape.block_bytes.return_value = 2**20
    decoder.device.partition_refusal.return_value = ""
    decoder.device.answerer.return_value.slots = 64
    process.prepare(decoder, MagicMock(), EngineSettings(vault_kv_mib=16), 5, 6)
    made = decoder.device.vault_cache
    assert made.call_args[0] == (decoder.cache_shape, 16, 5)
    assert decoder.device.answerer.call_args[0][1] is made.return_value


@pytest.mark.parametrize(("slots", "offered"), [(MOST_FAKES + 1, True), (1, False)])
def test_a_vault_that_exposes_too_few_prompts_at_once_refuses_to_hide_one_among_others(
    slots: int, offered: bool, llama: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the request would wait for slots for ever."""
    fake = FakeAnswerer(slots)
    monkeypatch.setattr(type(llama.device), "answerer", lambda *_: fake)
    reading = PromptReading(ByteTokenizer(), llama.vocabulary, llama.max_context)
    vault = process.prepare(llama, reading, SETTINGS, -1, -1)
    prompt = TextPrompt("I am <redacted>Ann</redacted>.", hidden=ObfuscationSecrets(bytes(32), (("Bob",),)))
    asked = AssignPrompt(
        1, "obfuscated", write_prompt(prompt), SamplingParams(), obfuscation=ObfuscationParams(fakes=1)
    )
    [said, *_] = vault.handle([asked])
    assert isinstance(said, PromptAccepted if offered else Failed)
    assert offered or said.code == "protection_unavailable"
    fake.close()
