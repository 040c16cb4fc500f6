"""Lists of words that name no person, kept by hand in data/words.txt: a list's name and its words a line."""

from importlib.resources import files

_TEXT = files("cloister.obfuscation").joinpath("candidates", "data", "words.txt").read_text(encoding="utf-8")
_LISTS = dict(line.split(" ", 1) for line in _TEXT.splitlines())


def word_list(name: str) -> tuple[str, ...]:
    return tuple(_LISTS[name].split())
