"""Partitions of word lists into cells: a word's cell is its pool. A cell has 16, 32 or 64 words, so that cells of two
lists can be walked side by side; where more are wanted, neighbours join. One text for each list: reading it is loading
it, and a search finds a word."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product

from cloister.obfuscation.parts import is_telling, words_in

MAX_CHARACTERS = 64  # of a word
LARGEST = 1024  # words of a block
Cell = tuple[str, ...]
LISTS: list["Cells"] = []  # all that there are


@dataclass(frozen=True, slots=True, repr=False)
class Slot:
    """One place of a secret that changes: its value is `values[index]`. A `free` one is no word (an initial, a minute):
    its values may come again."""

    values: Cell
    index: int
    kind: str = ""
    free: bool = False


class Cells:
    """Lines `kind|word|word|…|` of data/; no word is in two. "kind#2" has other capitals. `part`: kinds begin so."""

    def __init__(self, name: str, part: str = "") -> None:
        self._name, self._part = name, part.encode()
        self._text = b""
        LISTS.append(self)

    def load(self) -> bytes:
        if not self._text:
            path = files("cloister.obfuscation.candidates").joinpath("data", f"{self._name}.txt")
            lines = path.read_bytes().splitlines(keepends=True)
            self._text = b"\n" + b"".join(line for line in lines if line.startswith(self._part))
        return self._text

    def __iter__(self) -> Iterator[tuple[str, Cell]]:
        for line in self.load().decode().split("\n")[1:-1]:
            kind, *words, _ = line.split("|")
            yield kind, tuple(words)

    def slot(self, word: str, wanted: int = 0) -> Slot | None:
        """The word's place, in its capitals: as listed, all, none, or the first."""
        if not word or len(word) > MAX_CHARACTERS or not word.isprintable() or "|" in word:
            return None
        text = self.load()
        for listed in _listed(word):
            if (at := text.find(f"|{listed}|".encode())) < 0:
                continue
            kind, *words = text[text.rfind(b"\n", 0, at) + 1 : text.find(b"|\n", at)].decode().split("|")
            if len(words) < wanted:
                words = self._joined(kind, words, wanted)
            for spell in (str, str.upper, str.lower, str.capitalize):
                if word in (spelt := tuple(map(spell, words))) and len(set(spelt)) == len(words):
                    return Slot(spelt, spelt.index(word), kind.partition("#")[0])
        return None

    def _joined(self, kind: str, cell: list[str], wanted: int) -> list[str]:
        """The cell and its neighbours. The last few of a list stay as they are."""
        text, name = self.load(), f"\n{kind}|".encode()
        at, words = text.find(name), list[str]()
        while text.startswith(name, at):
            end = text.find(b"|\n", at)
            words += text[at + len(name) : end].decode().split("|")
            if len(words) >= wanted:
                if cell[0] in words:
                    return words
                words = []
            at = end + 1
        return cell


def _listed(word: str) -> Iterator[str]:
    """Spellings that a list may have of a word in any capitals."""
    yield word
    yield from {word.capitalize(), word.title(), word.lower()} - {word}  # "O'Neal", "New York"
    if word[:2].lower() == "mc":
        yield f"Mc{word[2:].capitalize()}"


def side_by_side(slots: Sequence[Slot], turns: int = 1, most: int = LARGEST) -> list[tuple[str, ...]]:
    """All slots take one step together, each around its own block of at most `most`; with `turns`, the last of the
    longest also goes a part of its block alone. From any of these one comes to all of these, in one order."""
    size = min((len(slot.values) for slot in slots if not slot.free), default=len(slots[0].values))
    if size > most or (len(slots) > 1 and size.bit_count() > 1):
        size = 1 << min(size, most).bit_length() - 1
    parts = [slot if len(slot.values) <= size else block(slot.values, slot.index, size) for slot in slots]
    blocks = [(part.values, part.index) for part in parts]
    size = min(size, max(len(values) for values, _ in blocks))
    if any(size % len(values) for values, _ in blocks):
        raise ValueError("the lengths of free slots divide those of words")
    longest = [place for place, (values, _) in enumerate(blocks) if len(values) == size]
    turns = min(turns, size) if len(longest) > 1 else 1
    found = []
    for turn, step in product(range(turns), range(size)):
        own = [(at + step) % len(values) for values, at in blocks]
        own[longest[-1]] = (own[longest[-1]] + turn * (size // turns)) % size
        found.append([own[longest[0]], own[longest[-1]], *own])
    return [tuple(values[at] for (values, _), at in zip(blocks, own, strict=True)) for _, _, *own in sorted(found)]


def aligned(slot: Slot, size: int = 16) -> Slot | None:
    """The block of a cell of any size in which the word is: cells of two sizes can then be walked side by side."""
    start = slot.index // size * size
    if start + size > len(slot.values):
        return None
    return Slot(slot.values[start : start + size], slot.index - start, slot.kind)


def block(values: Sequence[str], at: int, most: int = 16) -> Slot:
    """A free slot: the list is cut into blocks of `most`, the rest into its halves, quarters and so on."""
    start = at // most * most
    while start + most > len(values):
        most //= 2
        start += most if at >= start + most <= len(values) else 0
    return Slot(tuple(values[start : start + most]), at - start, free=True)


def apart(values: Sequence[str], secret: str, fixed: Callable[[str], bool] = lambda word: False) -> tuple[str, ...]:
    """The part of the values in which the secret is, where no telling word but a `fixed` one is in two. The values are
    parted in the same way whichever of them is the secret."""
    words = [
        {word for each in words_in(value) if is_telling(word := each[0].casefold()) and not fixed(word)}
        for value in values
    ]
    shared = {word for word, count in Counter(word for each in words for word in each).items() if count > 1}
    if not shared:
        return tuple(values)
    classes: list[tuple[list[str], set[str]]] = [([], set()), ([], set())]
    for value, own in zip(values, words, strict=True):
        own &= shared
        free = [one for one in classes if not one[1] & own]
        if not free:
            classes.append(([], set()))
            free = [classes[-1]]
        chosen = min(free, key=lambda one: len(one[0]))
        chosen[0].append(value)
        chosen[1].update(own)
    return next(tuple(one) for one, _ in classes if secret in one)
