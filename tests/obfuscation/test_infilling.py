"""A secret is cut into words, and nothing but signs and words that name nobody stays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cloister.errors import InvalidRequest
from cloister.obfuscation.entities import entities_of
from cloister.obfuscation.infilling import Infilling, words_of
from cloister.obfuscation.language_model import TokenShapes
from cloister.obfuscation.tags import parse_redacted


class Pieces:
    """Tokens are pieces of text, named by their number; a lone byte of a letter reads as no character. A text is cut
    into the longest pieces there are."""

    special = ()

    def __init__(self, *pieces: str) -> None:
        self._pieces = [*pieces, *map(chr, range(32, 127)), "\n", "…"]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self._pieces[token] for token in tokens)

    def encode(self, text: str) -> list[int]:
        tokens = []
        while text:
            piece = max((piece for piece in self._pieces if text.startswith(piece)), key=len)
            tokens.append(self._pieces.index(piece))
            text = text[len(piece) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token].encode()

    def render_chat(self, messages: object) -> list[int]:
        raise InvalidRequest("There is no template.")

    def named(self, *pieces: str) -> tuple[int, ...]:
        return tuple(map(self._pieces.index, pieces))


NAMES = (" Dr", " Marg", "aret", " Lee", " LEE", " Pet", "er", " Ma", "rie", " Marie", "Ann", "Tom", "Bo", "-Bo", "Lee")


def infilling(tokenizer: Pieces, text: str) -> Infilling:
    texts = [parse_redacted(text)]
    shapes = TokenShapes(tokenizer, len(tokenizer._pieces))  # type: ignore[arg-type]
    return Infilling(tokenizer, shapes, texts, entities_of(texts))  # type: ignore[arg-type]


def test_a_secret_is_sampled_word_by_word() -> None:
    tokenizer = Pieces(*NAMES)
    filling = infilling(tokenizer, "Seen by <redacted>Dr. Margaret Lee</redacted> twice.")
    named = tokenizer.named
    assert [slot.target for slot in filling.slots] == [named(" Marg", "aret"), named(" Lee")]
    assert all(slot.stem for slot in filling.slots)
    assert tokenizer.decode(filling.beginning).endswith("Seen by Dr.")
    assert filling.accept(0, named(" Pet"), False) and filling.accept(0, named(" Pet", "er"), True)
    assert filling.accept(0, named(" Marg"), False), "what may stand there does not depend on the secret"
    assert not filling.accept(0, named(" Ma", "rie"), True), "it would be cut otherwise"
    assert filling.values((named(" Pet", "er"), named(" Marie"))) == ("Dr. Peter Marie",)


def test_a_secret_whose_words_run_into_each_other_does_not_stand() -> None:
    tokenizer = Pieces(*NAMES)
    filling = infilling(tokenizer, "I am <redacted>Ann-Lee</redacted>, hello")
    assert len(filling.slots) == 2
    assert filling.stands((tokenizer.named("T", "o", "m"),)), "it is not whole yet"
    assert filling.stands((tokenizer.named("Bo"), tokenizer.named("Tom")))
    assert not filling.stands((tokenizer.named("Tom"), tokenizer.named("Bo"))), "-Bo is one token"
    assert filling.stands((tokenizer.named("Ann"), tokenizer.named("Lee"))), "the secret is in its own class"


def test_a_value_that_would_be_cut_into_other_words_does_not_stand() -> None:
    """An adversary who samples for it again would get other slots, and could rule it out."""
    tokenizer = Pieces(*NAMES, " Tom", " The", "Tom Bo")
    filling = infilling(tokenizer, "Seen by <redacted>Dr. Marie Lee</redacted> twice.")
    named = tokenizer.named
    assert filling.stands((named(" Tom"), named(" Marie")))
    assert not filling.stands((named(" The"), named(" Marie"))), "a word that stays is no word"


def test_a_value_that_stands_in_the_text_around_is_not_alike() -> None:
    """It would be marked there, too."""
    tokenizer = Pieces(*NAMES, " Tom", " Sue")
    filling = infilling(tokenizer, "Seen by <redacted>Ann Lee</redacted> twice. Ask Tom or SUE.")
    named = tokenizer.named
    assert filling.same_shape((named("Ann"), named(" Lee"))) and filling.same_shape((named("Bo"), named(" Marie")))
    assert not filling.same_shape((named("Bo"), named(" Tom")))
    assert not filling.same_shape((named("Bo"), named(" Sue")))


def test_what_stays_of_a_secret_and_the_text_between_two_are_given() -> None:
    tokenizer = Pieces(*NAMES)
    filling = infilling(tokenizer, "Ask <redacted>Ann.com</redacted> or <redacted>17</redacted> now")
    assert [tokenizer.decode(slot.target) for slot in filling.slots] == ["Ann", "17"]
    assert [slot.stem for slot in filling.slots] == [True, False]
    assert tokenizer.decode(filling.slots[1].bridge) == ".com or "
    assert [filling.entity_of(slot) for slot in (0, 1)] == [0, 1]


@pytest.mark.parametrize(
    ("pieces", "words", "stays"),
    [
        ((" Dr", ".", " Marg", "aret", " Lee"), [" Margaret", " Lee"], ""),
        (("j", "ane", ".", "doe", "8", "2", "@", "mail", ".", "com"), ["jane", "doe82", "mail"], ".com"),
        ((" March", " ", "1", "4", ",", " ", "2", "0", "1", "1"), [" March", "14", "2011"], ""),
        ((" the",), [" the"], ""),
        (("ann", " lee"), ["ann", " lee"], ""),
        (("+", "4", "9", "-", "7"), ["49", "7"], ""),
        (("\ufffd", "\ufffd", " ", "lee"), ["\ufffd\ufffd", "lee"], ""),
        (("?", "!"), ["?!"], ""),
    ],
)
def test_words_of_a_secret(pieces: tuple[str, ...], words: list[str], stays: str) -> None:
    tokenizer = Pieces(*pieces)
    cut, tail = words_of(tokenizer, range(len(pieces)))  # type: ignore[arg-type]
    assert [tokenizer.decode(word) for _, word in cut] == words and tokenizer.decode(tail) == stays
    whole = [token for glue, word in cut for token in (*glue, *word)]
    assert [*whole, *tail] == list(range(len(pieces)))
