"""What becomes of a public run that is private again: each tenant with a right to it keeps it and what it has below.

No keys and values move: every holder gets a run of its own, in the same blocks. From then on what one of them finds,
and what it loses, says nothing about the others. SafeKV (§V-C) gives a demoted run to the tenant that brought it; then
three strangers could take a common opening, and all that was computed after it, from everybody who uses it.
"""

from __future__ import annotations

from cloister.prefix.node import Node
from cloister.prefix.offload import LOST
from cloister.prefix.owners import Owner
from cloister.prefix.tree import Tree
from cloister.prefix.tree_blocks import TreeBlocks

MOST_HEIRS = 16
"""Tenants that keep a demoted run; any that came later compute it again. It bounds what one block takes in the tree.
What a monitor demotes seldom has so many: it serves eight strangers' hits on a quiet run."""


class Inheritance:
    def __init__(self, tree: Tree, holding: TreeBlocks) -> None:
        self._tree, self._holding = tree, holding

    def divide(self, node: Node, barred_until: float | None) -> None:
        """Take a public run out of the tree, and all below it; until the time given no label makes it public again."""
        above = node.parent
        assert above is not None and node.owner is self._tree.public
        first, heirs = node.tokens[: self._tree.page], node.holders[:MOST_HEIRS]
        for heir in heirs:
            self._leave_to(heir, above, node, barred_until)
        self._tree.remove(node)
        self._holding.drop(node)
        self._holding.order.push(above)
        for heir in heirs:
            if (own := self._tree.find(above, heir, first)) is not None:
                for each in self._tree.nodes(self._tree.compress(own)):
                    self._holding.order.push(each)

    def _leave_to(self, heir: Owner, above: Node, node: Node, barred_until: float | None) -> None:
        """Give one heir its part of a run and of all below it, under a node that it can reach."""
        barred = barred_until if node.owner is self._tree.public else node.watched
        at = 0
        tokens, places = node.tokens, node.blocks
        while at < node.pages:
            rest = tokens[at * self._tree.page :]
            own = self._tree.find(above, heir, rest[: self._tree.page])
            if own is None:
                until = _first_lost(places, at)
                if at < until:
                    above = self._new(heir, above, node, at, until)
                    above.watched = barred
                if until < node.pages:
                    return  # an earlier heir has the rest, in a lower tier
                break
            common = self._tree.common(own, rest)
            above = self._holding.split(own, common)
            here = places[at + above.resident : max(at + above.resident, min(at + common, node.resident))]
            self._holding.lend(above, here)  # it may be in a lower tier, and what is below it may not
            if barred is not None:
                above.watched = barred
            at += common
        for child in sorted(node.children, key=lambda child: child.owner is self._tree.public):  # its own come first
            if child.is_held_by(heir):
                self._leave_to(heir, above, child, barred_until)

    def _new(self, heir: Owner, above: Node, node: Node, start: int, end: int) -> Node:
        size = self._tree.page
        places = node.places(start, end)
        made = self._holding.inherit(above, heir, node.tokens[start * size : end * size], places, node)
        if node.owner is heir and not start and end == node.pages:
            made.links = node.links
        lower = max(start, node.resident)
        node.set_places(lower, [LOST] * (end - lower))  # one copy in a lower tier is one run's
        return made


def _first_lost(places: tuple[int, ...], start: int) -> int:
    """Where the pages end, from `start` on, that are anywhere."""
    return next((at for at in range(start, len(places)) if places[at] == LOST), len(places))
