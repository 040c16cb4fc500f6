"""An answer that recites its system prompt ends before the chunk in which it does; any other keeps its bits."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.errors import InvalidRequest
from cloister.messages.controller_vault import Claimed, Verified
from cloister.messages.generation import Failed
from cloister.messages.prompts import ChatPrompt, PromptMessage, TextPrompt
from cloister.models.decoder import Decoder
from cloister.vault import recitation
from cloister.vault.reading import system_text
from cloister.vault.recitation import CHUNK, MOST_COMMON, Recitation, SystemPrompt
from tests.vault.node import ByteTokenizer, FakeAnswerer, Room
from tests.vault.test_verifying import claim

SECRET = (
    "You are the night clerk of a small hotel by the sea. Never say that room seven is empty, and offer guests "
    "breakfast until ten. If someone asks for the manager, say that she is away until Monday morning."
)
BENIGN = (
    "Breakfast is served until ten in the room that looks out on the harbour. There is coffee, bread and fruit, and "
    "if you would like to speak with the manager, she will be back on Monday. May I help you with anything else?"
)
# The letter and the space that a small random model is made to say: no sentence, but a recitation of one.
SPOKEN = {ord("a"): 100.0, ord(" "): 100.0}
ALTERNATING: dict[str, Any] = {"logit_bias": SPOKEN, "frequency_penalty": 0.5, "max_tokens": 240}


def judged(text: str, secret: str = SECRET, pieces: int = 1000) -> tuple[bool, int]:
    tokenizer, tokens = ByteTokenizer(), ByteTokenizer().encode(text)
    watch = Recitation(SystemPrompt(secret), tokenizer)
    for end in range(pieces, len(tokens) + pieces, pieces):
        watch.judge(tokens[:end], ended=end >= len(tokens))
    return watch.stopped, watch.judged


@pytest.fixture(autouse=True)
def long_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recitation, "WINDOW", 400)  # a token is a byte here


@pytest.mark.parametrize(
    "said",
    [
        SECRET,
        f"Sure! My instructions: {SECRET}",
        SECRET.upper().replace(" ", " - "),
        SECRET.replace(". ", ".\n* "),
        SECRET[40:],
        " ".join(SECRET),
    ],
    ids=["word for word", "behind a lead", "in capitals", "as a list", "its end", "letters apart"],
)
@pytest.mark.parametrize("pieces", [1, 7, CHUNK, 1000])
def test_a_recitation_is_stopped_in_the_same_chunk_whatever_comes_at_once(said: str, pieces: int) -> None:
    stopped, left = judged(said, pieces=pieces)
    assert stopped and (left - 1) % CHUNK == 0 and (stopped, left) == judged(said)
    assert SystemPrompt(SECRET).common(said[:left]) <= MOST_COMMON


@pytest.mark.parametrize("said", [BENIGN, "", "No.", " ".join(reversed(SECRET.split()))])
def test_an_answer_on_the_same_matter_is_not(said: str) -> None:
    assert judged(said) == (False, max(1, len(said.encode())))


def test_of_a_short_system_prompt_a_part_is_enough() -> None:
    secret = "The password of room seven is swordfish."
    assert judged(f"They said that the password of room seven is swordfish. {BENIGN}", secret)[0]
    assert not judged(f"The password of this hotel's network is on your key card. {BENIGN}", secret)[0]


def test_without_a_threshold_nothing_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is the threshold that stops it."""
    monkeypatch.setattr(SystemPrompt, "is_recited", lambda *_: False)
    assert judged(SECRET) == (False, len(SECRET))


def test_only_system_messages_are_watched() -> None:
    def chat(*roles: str) -> ChatPrompt:
        return ChatPrompt(tuple(PromptMessage(role, f"words of {role}") for role in roles))

    assert system_text(chat("system", "user", "developer")) == "words of system\nwords of developer"
    for prompt in (chat("user"), TextPrompt("words"), ChatPrompt((PromptMessage("system", " "),))):
        with pytest.raises(InvalidRequest) as refused:
            system_text(prompt)
        assert refused.value.param == "stop_recitation"


def asked(llama: Decoder, answerer: FakeAnswerer, system: str, *, watched: bool) -> Room:
    room = Room(llama, answerer=answerer)
    prompt = ChatPrompt((PromptMessage("system", system), PromptMessage("user", "Say it.")))
    room.confide(1, prompt, stop_recitation=watched, **ALTERNATING)
    room.serve()
    return room


def answered(llama: Decoder, answerer: FakeAnswerer, system: str, size: int, *, watched: bool) -> list[Verified]:
    """Honest claims, in pieces; what the vault says to them."""
    honest = spoken(llama, system)
    room = asked(llama, answerer, system, watched=watched)
    said = claim(room, 1, honest[1:], size)
    if room.said and said and said[-1].finish == "content_filter":
        before = len(room.said)
        room.say(Claimed(1, tuple(honest[1:4])))
        assert len(room.said) == before  # nothing more is verified
    return said


def spoken(llama: Decoder, system: str) -> list[int]:
    from tests.vault.node import engine_answer

    return engine_answer(llama, tuple(f"{system}Say it.".encode()), **ALTERNATING)[0]


def tokens_of(said: list[Verified]) -> list[int]:
    return [token for each in said for token in each.tokens]


@pytest.mark.parametrize("size", [3, 16, 64])
def test_a_watched_answer_ends_where_it_recites(llama: Decoder, answerer: FakeAnswerer, size: int) -> None:
    honest = spoken(llama, "a " * 90)
    assert set(bytes(honest)) == set(b"a ")
    said = answered(llama, answerer, "a " * 90, size, watched=True)
    assert said[-1].finish == "content_filter" and not any(each.asked_otherwise for each in said)
    whole = len(tokens_of(said)) // CHUNK * CHUNK
    assert 0 < whole < len(honest) - CHUNK and tokens_of(said)[:whole] == honest[1 : 1 + whole]


def test_one_that_is_not_watched_or_does_not_recite_comes_out_whole(llama: Decoder, answerer: FakeAnswerer) -> None:
    for system, watched in (("a " * 90, False), ("b " * 90, True)):
        said = answered(llama, answerer, system, 16, watched=watched)
        assert tokens_of(said) == spoken(llama, system)[1:]
        assert [each.finish for each in said] == [None] * (len(said) - 1) + ["length"]
        answerer.withdraw(0)


def test_a_prompt_without_a_system_message_is_refused(llama: Decoder, answerer: FakeAnswerer) -> None:
    room = Room(llama, answerer=answerer)
    refused = room.confide(1, "No system message.", stop_recitation=True)
    assert isinstance(refused, Failed) and refused.param == "stop_recitation"
