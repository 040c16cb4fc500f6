from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloister.gateway.choice import StopStrings

letters = st.text("ab", max_size=30)


def watch(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    watcher = StopStrings(stops).watch()
    assert watcher is not None
    shown = [watcher.push(piece) for piece in pieces]
    shown.append("" if watcher.hit else watcher.finish())
    return shown, watcher.hit


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """By definition: cut where the first stop string to be completed begins, the longest if several end there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), st.lists(letters, max_size=8))
def test_the_pieces_do_not_matter(stops: list[str], pieces: list[str]) -> None:
    shown, hit = watch(stops, pieces)
    assert ("".join(shown), hit) == expected(stops, "".join(pieces))


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), letters)
def test_no_part_of_a_stop_string_is_shown_before_it_is_known_to_be_none(stops: list[str], text: str) -> None:
    watcher = StopStrings(stops).watch()
    assert watcher is not None
    shown = ""
    for position, character in enumerate(text):
        shown += watcher.push(character)
        if watcher.hit:
            break
        hidden = text[len(shown) : position + 1]
        heads = [stop[:size] for stop in stops for size in range(len(stop))]
        longest = max(len(head) for head in heads if text[: position + 1].endswith(head))
        assert len(hidden) == longest, "holds back exactly what may yet become a stop string"


def test_without_stop_strings_there_is_nothing_to_watch() -> None:
    assert StopStrings([]).watch() is None
