"""Secrets without relation, hidden together: what the text around tells of one, the others tell, too. Combinations of
their values are scored with all in place, and banded and drawn as one secret's values are (`pool_draw`).

Which combinations are scored is one class of a partition of all, made by a key: each of them would have got these.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import product

from cloister.obfuscation.entities import Entity, entities_of, without
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Group, Values
from cloister.obfuscation.pool_draw import NEAR, Drawn, PoolDraw, Window
from cloister.obfuscation.tags import TaggedText

MOST = 256  # combinations that are scored when a secret joins, at most
CHARACTERS = 8_000  # that are read of all of them while a prompt's secrets join, if the fewest need no more
CLOSE, LARGEST = 16, 64  # before a secret joins: characters read after it, and values of its pool, at most
FEWEST, ALONE, JOINED = 3, 3, 2  # times λ+1: combinations; values of a secret before it joins, and after
SECRETS = 6  # that are hidden together; more are hidden in parts


@dataclass(frozen=True, slots=True)
class Together:
    """For one prompt."""

    texts: Sequence[TaggedText]
    entities: Sequence[Entity]
    by: PoolDraw

    def draw(self, groups: Sequence[Group]) -> Generator[int, None, Drawn]:
        """The values are in the order of the groups' entities."""
        if len(groups) == 1:
            [one] = groups
            return (yield from self.by.draw(*alone(self.texts, self.entities, one.entities), one.pool or ()))
        size = self.by.fakes + 1
        held: Group | None = None
        for number, group in enumerate(groups, 1):
            here = alone(self.texts, self.entities, group.entities)
            pool = part_of(group.pool or (), self._real(group), LARGEST, self.by.prf)
            own = Group(group.entities, tuple((yield from self.by.band(*here, pool, ALONE * size, CLOSE))))
            share = CHARACTERS // (len(groups) - 1)
            held = own if held is None else (yield from self._joined(held, own, share, last=number == len(groups)))
        assert held is not None
        return (yield from self.by.chosen(*alone(self.texts, self.entities, held.entities), held.pool or ()))

    def _joined(self, one: Group, other: Group, share: int, *, last: bool) -> Generator[int, None, Group]:
        size = self.by.fakes + 1
        places = tuple(sorted((*one.entities, *other.entities)))
        here = alone(self.texts, self.entities, places)
        each = Window(*here, NEAR).length + 8 * len(places)
        most = max(FEWEST * size, min(MOST, share // each)) if self.by.model is not None else 0
        pairs = class_of(one.pool or (), other.pool or (), self._real(one), self._real(other), most, self.by.prf)
        order = [(*one.entities, *other.entities).index(place) for place in places]
        pool = [tuple((*first, *second)[at] for at in order) for first, second in pairs]
        apart = [values for values in pool if len({value.casefold() for value in values}) == len(values)]
        band = yield from self.by.band(*here, apart, size if last else JOINED * size)
        return Group(places, tuple(band))

    def _real(self, group: Group) -> Values:
        return tuple(self.entities[place].secret for place in group.entities)


def part_of(pool: Sequence[Values], real: Values, most: int, prf: Prf) -> list[Values]:
    """The real one's of as many parts as have at most `most` values each, made by the key."""
    parts = -(-len(pool) // most)
    places = prf.order(b"0" + "\0".join(value for values in pool for value in values).encode(), len(pool)).places
    return [values for values, at in zip(pool, places, strict=True) if at % parts == places[pool.index(real)] % parts]


def class_of(
    first: Sequence[Values], second: Sequence[Values], one: Values, other: Values, most: int, prf: Prf
) -> list[tuple[Values, Values]]:
    """About `most` pairs, with (one, other): those whose places, shuffled by the key, have one sum modulo a number.
    Where that leaves hardly two of any value, no value is in two pairs."""
    context = "\0".join(value for values in (*first, *second) for value in values).encode()
    rows, columns = (prf.order(side + context, len(those)).places for side, those in ((b"1", first), (b"2", second)))
    longest = max(len(rows), len(columns))
    count = longest if 2 * len(rows) * len(columns) > most * longest else -(-len(rows) * len(columns) // most)
    wanted = (rows[first.index(one)] + columns[second.index(other)]) % count
    found = [
        (a, b) for a, b in product(range(len(rows)), range(len(columns))) if (rows[a] + columns[b]) % count == wanted
    ]
    return [(first[a], second[b]) for a, b in sorted(found, key=lambda pair: (rows[pair[0]], columns[pair[1]]))]


def alone(
    texts: Sequence[TaggedText], entities: Sequence[Entity], those: Sequence[int]
) -> tuple[list[TaggedText], list[Entity]]:
    """The texts with these entities alone marked, all others blanked."""
    others = [entity for at, entity in enumerate(entities) if at not in those]
    left = without(texts, others) if others else list(texts)
    return left, entities_of(left) if others else list(entities)
