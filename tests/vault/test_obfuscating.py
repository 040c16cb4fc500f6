"""A vault at `obfuscated`: λ+1 prompts of one request, each as if it were alone, in an order that says nothing; and
nothing at all comes out where there are too few."""

from __future__ import annotations

import random
from collections import Counter
from time import perf_counter
from typing import Any

import pytest

from cloister.compute.layout import BLOCK_TOKENS
from cloister.engine.base import EngineRequest
from cloister.errors import ObfuscationRefused, PromptTooLong, TagsInvalid, error_from_code
from cloister.messages.controller_vault import Answered, AssignPrompt, LeaseCores, Prefilled, PromptAccepted, WantCores
from cloister.messages.generation import Failed
from cloister.messages.prompts import (
    ChatPrompt,
    ObfuscationParams,
    ObfuscationSecrets,
    PromptMessage,
    TextPrompt,
    TokenPrompt,
    write_prompt,
)
from cloister.models.decoder import Decoder
from cloister.obfuscation import index
from cloister.obfuscation.index import REQUEST, Prf
from cloister.obfuscation.store import MemoryStore
from tests.vault.node import FakeAnswerer, Room, SamplingParams, engine_answer

SECRET = bytes(range(32))
BEFORE = "This is a long and public beginning of a letter, so long that it takes a few blocks. My name is "
TEXT = BEFORE + '<redacted category="name">Ann</redacted> and ANN lives in <redacted>Ghent</redacted>, says Ann.'
GIVEN = (("Bob", "Paris"), ("Eve", "Delft"), ("Kim", "Liege"))


def hidden(text: str, given: Any = (), secret: bytes = SECRET, **more: Any) -> TextPrompt:
    return TextPrompt(text, hidden=ObfuscationSecrets(secret, given), **more)


def plain(name: str, place: str) -> str:
    return f"{BEFORE}{name} and {name.upper()} lives in {place}, says {name}."


def prefilled(room: Room, number: int = 1) -> Prefilled:
    [found] = [one for one in room.said if isinstance(one, Prefilled) and one.request_id == number]
    return found


@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "seed": 11, "logprobs": 2}], ids=["greedy", "seeded"])
def test_each_prompt_begins_as_it_would_alone_and_the_real_one_is_where_the_secret_says(
    llama: Decoder, answerer: FakeAnswerer, params: Any
) -> None:
    room = Room(llama, answerer=answerer)
    understood = room.confide(1, hidden(TEXT, GIVEN), "obfuscated", ObfuscationParams(fakes=3), **params)
    assert understood == PromptAccepted(1, len(plain("Ann", "Ghent")), 4)
    room.serve()
    found = prefilled(room)
    order = Prf(SECRET).order(REQUEST, 4)
    variants = order.shuffled([plain(*values) for values in (("Ann", "Ghent"), *GIVEN)])
    for first, text in zip(found.sequences, variants, strict=True):
        [token, *_], logprobs = engine_answer(llama, tuple(text.encode()), **params)
        assert (first.token, first.finish, first.rotation) == (token, None, 0)
        assert first.logprob == (logprobs[0] if logprobs else None)
    assert variants[order.authentic] == plain("Ann", "Ghent")
    assert len(answerer.exposed) == 4 and found.public == () and found.max_tokens == 8
    alike = len(BEFORE) // BLOCK_TOKENS
    tables = [answerer.exposed[first.slot].blocks for first in found.sequences]
    assert len({table[:alike] for table in tables}) == 1, "what comes before the first secret is held once"
    assert len({table[alike] for table in tables}) == 4, "nothing after it is"
    assert room.decoder.rows == 4 * len(variants[0]) - 3 * alike * BLOCK_TOKENS, "and computed once"
    room.release(1)
    room.forget()
    assert not answerer.exposed and room.pool.free == room.pool.total


def test_the_real_prompt_of_a_chat_is_that_of_partitioned(room: Room) -> None:
    said = "I am {}. Where is {}?"
    turns = (PromptMessage("system", "Be kind.", public=True), PromptMessage("user", "{}"))
    tagged = said.format("<redacted>Ann</redacted>", "<redacted>Ghent</redacted>")
    chat = ChatPrompt((turns[0], PromptMessage("user", tagged)), ObfuscationSecrets(SECRET, GIVEN))
    room.confide(1, chat, "obfuscated", ObfuscationParams(fakes=3))
    room.confide(2, ChatPrompt((turns[0], PromptMessage("user", said.format("Ann", "Ghent")))))
    room.serve()
    [alone] = prefilled(room, 2).sequences
    found = prefilled(room)
    real = found.sequences[Prf(SECRET).order(REQUEST, 4).authentic]
    assert (real.token, real.origin, real.rotation) == (alone.token, alone.origin, alone.rotation)
    assert found.public == prefilled(room, 2).public == tuple(b"Be kind.")


def kept(room: Room, secret: str) -> tuple[str, ...]:
    found = room.vault._obfuscating._store.find(secret)
    assert found is not None
    return found.values


def test_substitutes_are_sampled_in_turns_and_a_session_keeps_them(room: Room) -> None:
    params = ObfuscationParams(fakes=3, epsilon=1.0, distance="absolute", candidates=16)
    text = "My name is <redacted>Emma</redacted> today."
    assert isinstance(room.confide(1, hidden(text), "obfuscated", params), WantCores), "not understood before they are"
    while not any(isinstance(one, PromptAccepted) for one in room.said):
        assert room.wants_cores
        room.say(LeaseCores(1, 5))
    room.serve()
    assert len(prefilled(room).sequences) == 4
    first = kept(room, "Emma")
    assert len(set(first)) == 3 and all(name[0].isupper() and name[-1].islower() for name in first), "its shape"
    room.release(1)
    assert isinstance(
        room.confide(2, hidden("Call <redacted>EMMA</redacted> now.", secret=bytes(32)), "obfuscated", params),
        PromptAccepted,
    )
    assert kept(room, "emma") == first
    room.serve()
    room.release(2)
    room.forget()
    assert room.pool.free == room.pool.total


def test_who_leaves_while_substitutes_are_sampled_leaves_nothing(room: Room) -> None:
    params = ObfuscationParams(fakes=3, epsilon=1.0, distance="absolute", candidates=16)
    data, sampling = write_prompt(hidden("My name is <redacted>Emma</redacted> today.")), SamplingParams(max_tokens=8)
    for number in (1, 2):
        room.say(AssignPrompt(number, "obfuscated", data, sampling, obfuscation=params))
    for _ in range(4):
        room.say(LeaseCores(1, 5))
    assert room.pool.free < room.pool.total
    room.cancel(1)
    room.cancel(2)
    room.serve()
    assert room.pool.free == room.pool.total and not any(isinstance(one, Prefilled) for one in room.said)


def prompts_of(room: Room, number: int, prompt: ChatPrompt | TextPrompt, **wish: Any) -> set[str]:
    """The prompts that a prompt goes among, its own included."""
    hiding = room.vault._obfuscating
    params, data = ObfuscationParams(**{"fakes": 1, **wish}), write_prompt(prompt)
    hiding.add(AssignPrompt(number, "obfuscated", data, SamplingParams(max_tokens=8), obfuscation=params))
    try:
        while (found := hiding.work(number)) is None:
            assert hiding.next_tokens >= 1
    finally:
        hiding.drop(number)
    return {bytes(one.prompt).decode() for one in found}


def test_the_vault_looks_for_secrets_itself_if_it_is_asked_to(room: Room) -> None:
    """What is marked stays so, and is one secret with what it overlaps; of what is answered or public none is found."""
    said = "Dr. <redacted>Sarah</redacted> Connor has <redacted>a blue door</redacted>, card 4111 1111 1111 1111."
    turns = (PromptMessage("system", "You are Maria Lopez.", public=True), PromptMessage("assistant", "Peter Pan?"))
    given = ("Dr. Bob Parker", "no other name", "5500 0000 0000 0004")
    for at, roles in enumerate((turns, (turns[1],), ())):
        chat = ChatPrompt((*roles, PromptMessage("user", said)), ObfuscationSecrets(SECRET, (given,)))
        before = "".join(turn.content for turn in roles)
        assert prompts_of(room, at + 1, chat, auto_redact=True) == {
            f"{before}Dr. Sarah Connor has a blue door, card 4111 1111 1111 1111.",
            f"{before}Dr. Bob Parker has no other name, card 5500 0000 0000 0004.",
        }
    room.vault._obfuscating._store = MemoryStore()
    with pytest.raises(TagsInvalid, match="each of the 2 secrets"):
        prompts_of(room, 9, ChatPrompt((PromptMessage("user", said),), ObfuscationSecrets(SECRET, (given,))))


def test_what_was_found_once_is_a_secret_of_the_session(room: Room) -> None:
    first = hidden("I am <redacted>Ann</redacted>.", (("Bob",),))
    assert prompts_of(room, 1, first) == {"I am Ann.", "I am Bob."}
    again = hidden("Where is ANN?", (("Bob",),))
    assert prompts_of(room, 2, again) == {"Where is ANN?", "Where is BOB?"}, "nobody marked it this time"
    loud = hidden("I AM <redacted>EVE</redacted>.", (("KIM",),))
    assert prompts_of(room, 3, loud) == {"I AM EVE.", "I AM KIM."}
    assert prompts_of(room, 4, hidden("Hello Eve!", (("KIM",),))) == {"Hello Eve!", "Hello Kim!"}


def test_a_prompt_without_a_secret_to_find_is_refused_and_a_long_one_before_it_is_searched(room: Room) -> None:
    with pytest.raises(TagsInvalid, match="marked or found"):
        prompts_of(room, 1, hidden("How do I sort a list?"), auto_redact=True)
    with pytest.raises(PromptTooLong):
        next(room.vault._obfuscating._hidden(confided_long()))


def confided_long() -> AssignPrompt:
    wish = ObfuscationParams(auto_redact=True)
    return AssignPrompt(
        1, "obfuscated", write_prompt(hidden("x " * 5000)), SamplingParams(max_tokens=8), obfuscation=wish
    )


def test_a_session_does_not_forget_a_secret_and_takes_no_more_than_it_can_remember(
    room: Room,
) -> None:
    room.vault._obfuscating._store = MemoryStore(2)
    for number, name in enumerate(("Ann", "Ben", "Ann"), 1):
        prompts_of(room, number, hidden(f"I am <redacted>{name}</redacted>.", ((f"{name}a",),)))
    with pytest.raises(ObfuscationRefused, match="new session"):
        prompts_of(room, 4, hidden("I am <redacted>Cem</redacted>.", (("Bob",),)))
    with pytest.raises(ObfuscationRefused, match="new session"):
        prompts_of(room, 5, hidden("I am <redacted>Cem</redacted>."))
    assert room.vault._obfuscating._store.known() == ["Ann", "Ben"]


def test_too_few_candidates_stop_it_and_nothing_has_left_the_vault(room: Room) -> None:
    text = 'My number is <redacted category="id">77</redacted> and no other.'
    wish = ObfuscationParams(fakes=31, method="gqs", epsilon=1e-9, distance="absolute", candidates=64)
    room.confide(1, hidden(text), "obfuscated", wish)
    room.serve()
    [told] = [one for one in room.said if isinstance(one, Failed)]
    assert told.code == "too_few_candidates"
    assert "Secret 1 (id) has" in told.message and "at least 31" in told.message and "larger ε" in told.message
    assert "77" not in told.message
    assert not room.answerer.exposed and not any(isinstance(one, Prefilled | PromptAccepted) for one in room.said)
    assert room.pool.free == room.pool.total


LONG = "x" * 300
ONE = ObfuscationSecrets(SECRET, (("Bob",),))
SAID = PromptMessage("user", "I am <redacted>Ann</redacted>.")
ANSWERED = ChatPrompt((SAID, PromptMessage("assistant", "Hello."), PromptMessage("user", "Go on.")), ONE)
PUBLICLY = ChatPrompt((PromptMessage("system", "Ann is nice.", public=True), SAID), ONE)

REFUSED = {
    "none": (hidden("No secret at all."), "tags_invalid"),
    "not closed": (hidden("<redacted>Ann"), "tags_invalid"),
    "not opened": (hidden("Ann</redacted> is here."), "tags_invalid"),
    "nested": (hidden("I am <redacted>Ann <redacted>Lee</redacted></redacted>."), "tags_invalid"),
    "empty": (hidden("I am <redacted></redacted>."), "tags_invalid"),
    "unknown": (hidden('I am <redacted category="king">Ann</redacted>.'), "tags_invalid"),
    "misspelt": (hidden("I am <redact>Ann</redact>."), "tags_invalid"),
    "the whole prompt": (hidden("<redacted>The whole prompt</redacted>"), "tags_invalid"),
    "in no list": (hidden(f"I am <redacted>{LONG}</redacted> today."), "too_few_candidates"),
    "no room for an answer": (
        hidden(f"I am <redacted>Ann</redacted>. {'word ' * 110}", (("Bob",),)),
        "context_length_exceeded",
    ),
    "given itself": (hidden("I am <redacted>Ann</redacted>.", (("Ann",),)), "tags_invalid"),
    "given too many": (hidden("I am <redacted>Ann</redacted>.", (("Bob", "Eve"),)), "tags_invalid"),
    "public": (hidden("I am <redacted>Ann</redacted>.", public=True), "tags_invalid"),
    "no index": (TextPrompt("I am <redacted>Ann</redacted>."), "invalid_request"),
    "tokens": (TokenPrompt((1, 2, 3)), "tags_invalid"),
    "an earlier answer": (ANSWERED, "obfuscation_refused"),
    "mentioned in public": (PUBLICLY, "tags_invalid"),
}


@pytest.mark.parametrize(("prompt", "code"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_hidden_is_refused_with_a_reason(room: Room, prompt: Any, code: str) -> None:
    room.confide(1, prompt, "obfuscated", ObfuscationParams(fakes=1))
    room.serve()
    [told] = [one for one in room.said if isinstance(one, Failed)]
    assert told.code == code and "Ann" not in told.message
    assert error_from_code(told.code, told.message)
    assert room.pool.free == room.pool.total and not room.answerer.exposed


def test_a_secret_that_comes_twice_is_one_and_goes_among_the_same(room: Room) -> None:
    text = "<redacted>Ann</redacted>, <redacted>Ann</redacted> and Ann again"
    room.confide(1, hidden(text, (("Bob",),)), "obfuscated", ObfuscationParams(fakes=1))
    room.serve()
    assert len(prefilled(room).sequences) == 2
    room.confide(2, hidden("Is <redacted>Ann</redacted> here?", (("Eve",),)), "obfuscated", ObfuscationParams(fakes=1))
    assert [one.code for one in room.said if isinstance(one, Failed)] == ["obfuscation_refused"], "of a session"


def sampled(room: Room, secret: bytes, most: int) -> list[str]:
    """The prompts in the order in which they are prefilled, sampled by a vault that has just begun, `most` tokens at a
    time."""
    hiding = room.vault._obfuscating
    hiding._store = MemoryStore()
    hiding.allow(most)
    prompt = write_prompt(hidden("My name is <redacted>Emma</redacted> today.", secret=secret))
    wish = ObfuscationParams(fakes=3, epsilon=1.0, distance="absolute", candidates=16)
    hiding.add(AssignPrompt(1, "obfuscated", prompt, SamplingParams(max_tokens=8), obfuscation=wish))
    while (found := hiding.work(1)) is None:
        pass
    return [bytes(one.prompt).decode() for one in found]


def test_a_prompt_that_is_sent_again_goes_among_the_same_ones_in_the_same_order(room: Room) -> None:
    """By the secret alone: a client sends it again with the same one, to a vault that knows nothing of the first."""
    first = sampled(room, SECRET, 64)
    assert len(set(first)) == 4 and sampled(room, SECRET, 5) == first
    assert any(sampled(room, bytes([at]) * 32, 64) != first for at in range(4)), "another secret draws another order"


SAYS = "My name is <redacted>Ann</redacted>."


@pytest.mark.parametrize(
    "more",
    [{"stops": ("Ann",)}, {"stops": ("\n", "so ann said")}, {"names": ("mine", "ann-1")}],
    ids=["stop", "within", "name"],
)
def test_what_others_read_may_not_say_a_secret_whether_marked_found_or_known_from_before(room: Room, more: Any) -> None:
    bob, eve = (("Bob",),), (("Bob", "Eve"),)
    with pytest.raises(ObfuscationRefused) as caught:
        prompts_of(room, 1, TextPrompt(SAYS, hidden=ObfuscationSecrets(SECRET, bob, **more)))
    assert "Ann" not in str(caught.value) and "ann" not in str(caught.value)
    assert not room.vault._obfuscating._store.known(), "nothing was drawn for it"
    prompts_of(room, 2, hidden(SAYS, bob))
    unsaid = ObfuscationSecrets(SECRET, (("Eve",),), **more)
    with pytest.raises(ObfuscationRefused):
        prompts_of(room, 3, TextPrompt("Is <redacted>Kim</redacted> here?", hidden=unsaid))
    found = ObfuscationSecrets(SECRET, eve, stops=("Connor",))
    with pytest.raises(ObfuscationRefused):
        prompts_of(room, 4, TextPrompt("Ask Sarah Connor, please.", hidden=found), auto_redact=True)


def asked(room: Room, number: int, *said: str) -> dict[str, int]:
    """The prompts of a chat in which user and assistant speak in turn, and the place of each."""
    turns = tuple(PromptMessage(("user", "assistant")[at % 2], text) for at, text in enumerate(said))
    prompt = ChatPrompt(turns, ObfuscationSecrets(bytes([number]) * 32, (("Bob",), ("Eve",))))
    hiding = room.vault._obfuscating
    params = SamplingParams(max_tokens=8, stop_tokens=(0,))
    hiding.add(AssignPrompt(number, "obfuscated", write_prompt(prompt), params, obfuscation=ObfuscationParams(fakes=2)))
    found = hiding.work(number)
    assert found is not None
    return {bytes(one.prompt).decode(): place for place, one in enumerate(found)}


def test_in_a_conversation_each_variant_goes_on_with_what_it_was_answered(room: Room) -> None:
    first = "I am <redacted>Ann</redacted>."
    for number in (1, 2, 3):  # asked again, it is the same conversation
        places = asked(room, number, first)
        assert set(places) == {"I am Ann.", "I am Bob.", "I am Eve."}
    answers = {"I am Ann.": "Hi Ann! ", "I am Bob.": "Ho Bob.", "I am Eve.": "Ha Eve?"}
    streams = {places[said]: tuple(f"{text}\0 and more".encode()) for said, text in answers.items()}
    room.say(Answered(3, tuple(streams[place] for place in range(3))))
    second = asked(room, 4, first, "Hi Ann!", " And Ann?")
    assert set(second) == {"I am Ann.Hi Ann!  And Ann?", "I am Bob.Ho Bob. And Bob?", "I am Eve.Ha Eve? And Eve?"}
    with pytest.raises(ObfuscationRefused, match="not given in this session"):
        asked(room, 5, first, "Ho Bob.", " And Ann?")
    room.say(Answered(5, ((), ())))  # of no request that is known


# ---- who gets the prompts in their order, and knows this code


def ordered(room: Room, number: int, secret: bytes) -> tuple[list[EngineRequest], int]:
    """The prompts as they would be prefilled and exposed, one after the other, and which of them is real."""
    names = ["Ann", "Bob", "Eve", "Kim", "Zoe"]
    random.Random(number).shuffle(names)
    real, *fakes = names[:4]
    prompt = hidden(f"I am <redacted>{real}</redacted>, and well.", tuple((name,) for name in fakes), secret)
    hiding = room.vault._obfuscating
    hiding._store = MemoryStore()
    params, wish = SamplingParams(temperature=0.0, max_tokens=8), ObfuscationParams(fakes=3)
    hiding.add(AssignPrompt(1, "obfuscated", write_prompt(prompt), params, obfuscation=wish))
    found = hiding.work(1)
    assert found is not None
    return found, [bytes(one.prompt).decode() for one in found].index(f"I am {real}, and well.")


GUESSES: dict[str, Any] = {
    "first": lambda prompts: 0,
    "last": lambda prompts: len(prompts) - 1,
    "smallest": lambda prompts: min(range(len(prompts)), key=lambda at: prompts[at].prompt),
    "largest": lambda prompts: max(range(len(prompts)), key=lambda at: prompts[at].prompt),
    "longest": lambda prompts: max(range(len(prompts)), key=lambda at: len(prompts[at].prompt)),
}


def right(room: Room, guesses: dict[str, Any], count: int) -> dict[str, int]:
    """How often each guess is right."""
    draw, hits = random.Random(5), dict.fromkeys(guesses, 0)
    for number in range(count):
        prompts, real = ordered(room, number, draw.randbytes(32))
        for name, guess in guesses.items():
            hits[name] += guess(prompts) == real
    return hits


COUNT = 500
LOW, HIGH = 87, 164
"""Of 500 draws with one in four: outside these with a chance of one in ten thousand."""


def test_nobody_guesses_the_real_prompt_from_its_place(room: Room) -> None:
    found = right(room, GUESSES, COUNT)
    assert all(LOW <= hits <= HIGH for hits in found.values()), found


NAMES = ("Ann", "Bo", "Christopher", "Desmond", "Eve", "Nakamura", "Philippa", "Zoe")
"""Of all lengths, as substitutes that users bring may be."""


def captured(room: Room, number: int, draw: random.Random) -> tuple[list[dict[str, float]], int, int]:
    """What the vault says of each sequence and when it can be asked for it; the length it tells; which is real."""
    real, *fakes = draw.sample(NAMES, 4)
    secret = draw.randbytes(32)
    system = PromptMessage("system", "Be kind. ", public=True)  # so that each prompt's length is told with it
    said = PromptMessage("user", f"I am <redacted>{real}</redacted>.")
    prompt = ChatPrompt((system, said), ObfuscationSecrets(secret, tuple((name,) for name in fakes)))
    room.vault._obfuscating._store = MemoryStore()
    room.said.clear()
    understood = room.confide(number, prompt, "obfuscated", ObfuscationParams(fakes=3), logprobs=1, max_tokens=4)
    ready: dict[int, float] = {}
    while room.wants_cores:
        begun = perf_counter()
        room.say(LeaseCores(1))
        for slot in room.answerer.exposed:
            ready.setdefault(slot, perf_counter() - begun)
    seen: list[dict[str, float]] = []
    for place, first in enumerate(prefilled(room, number).sequences):
        assert first.logprob is not None and first.finish is None
        exposed = room.answerer.exposed[first.slot]
        seen.append(
            {
                "place": place,
                "slot": first.slot,
                "seconds": ready[first.slot],
                "token": first.token,
                "likelihood": first.logprob.logprob,
                "length": first.rotation or first.origin,
                "blocks": len(exposed.blocks),
            }
        )
    room.release(number)
    room.forget()
    return seen, understood.prompt_tokens, Prf(secret).order(REQUEST, 4).authentic


def hits(room: Room, count: int) -> dict[str, int]:
    """How often each way to guess is right. The last two go by a length that is told: the longest prompt's, as it is,
    and the real one's, as it would be if lengths were not made alike."""
    draw, found = random.Random(11), Counter[str]()
    for number in range(1, count + 1):
        seen, told, real = captured(room, number, draw)
        for name in seen[0]:
            for way in (min, max):
                found[f"{way.__name__} {name}"] += way(range(4), key=lambda at: seen[at][name]) == real
        lengths = [each["length"] for each in seen]
        found["told length"] += lengths.index(told) == real
        found["real length"] += lengths.index(lengths[real]) == real
    return dict(found)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(40, 1, 22), pytest.param(500, 80, 172, marks=pytest.mark.release)],
    ids=["40", "500"],
)
def test_nobody_guesses_it_from_what_the_vault_says_and_when(room: Room, count: int, low: int, high: int) -> None:
    """One in four is right by chance; outside of these with one in a hundred thousand."""
    found = hits(room, count)
    assert found.pop("real length") > 0.6 * count, "the adversary wins where lengths are not made alike"
    assert len(found) == 15 and all(low <= right <= high for right in found.values()), found


def test_without_the_drawn_order_the_same_guess_wins(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prf, "order", lambda prf, context, count: index.Order(tuple(range(count))))
    assert right(room, GUESSES, 50)["first"] == 50
