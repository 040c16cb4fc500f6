"""The kinds of characters in words. All λ+1 variants have the secret's shape, so it does not show which is real."""

import numpy as np
import numpy.typing as npt

from cloister.obfuscation.language_model import SamplingTokenizer

Mask = npt.NDArray[np.bool_]


def shape_of(words: str) -> str:
    """Letters of one case in a row are one: "Mrs. Ann Lee" is "Aa. Aa Aa", "3rd May 2019" is "0a Aa 0000"."""
    kinds: list[str] = []
    for each in words:
        kind = "0" if each.isdigit() else "A" if each.isupper() else "a" if each.isalpha() else each
        if kind not in "Aa" or kinds[-1:] != [kind]:
            kinds.append(kind)
    return "".join(kinds)


class TokenShapes:
    def __init__(self, tokenizer: SamplingTokenizer, vocabulary: int) -> None:
        special = frozenset(tokenizer.special)
        numbers: dict[str, int] = {}
        of_token = np.zeros(vocabulary, dtype=np.int64)
        for token in range(vocabulary):
            text = "" if token in special else tokenizer.token_bytes(token).decode("utf-8", "replace")
            of_token[token] = numbers.setdefault(shape_of(text), len(numbers))
        self._of_token = of_token
        self._shapes = tuple(numbers)
        self._known: dict[tuple[str, str, bool], Mask] = {}

    def following(self, words: str, shape: str, last: bool) -> Mask:
        """The tokens after which the words begin as the shape does; if it is the `last` one, are of the shape."""
        key = shape_of(words), shape, last
        if key not in self._known:
            if len(self._known) > 64:
                self._known.clear()
            fits = [bool(each) and _fits(_joined(key[0], each), shape, last) for each in self._shapes]
            self._known[key] = np.array(fits)[self._of_token]
        return self._known[key]


def _joined(one: str, other: str) -> str:
    return one + (other[1:] if one[-1:] == other[0] and other[0] in "Aa" else other)


def _fits(found: str, shape: str, last: bool) -> bool:
    return found == shape if last else shape.startswith(found)
