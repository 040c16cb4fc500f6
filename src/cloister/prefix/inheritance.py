"""Demotion: a public node becomes private, and each tenant with a right to it keeps it and its own nodes below. Every
heir gets a node in the same blocks, so the hits of one reveal nothing to the others. SafeKV (§V-C) gives a demoted node
to the tenant that brought it; then three other tenants could take a common prefix from all its users."""

from cloister.prefix.node import Namespace, Node
from cloister.prefix.tree import Tree
from cloister.prefix.tree_blocks import LOST, TreeBlocks

MAX_HEIRS = 16  # bounds what one block costs in the tree; later tenants compute its pages again


class Inheritance:
    def __init__(self, tree: Tree, blocks: TreeBlocks) -> None:
        self._tree, self._blocks = tree, blocks

    def divide(self, node: Node, barred_until: float | None) -> None:
        above = node.parent
        assert above is not None and node.namespace is self._tree.public
        first, heirs = node.tokens[: self._tree.page], node.rights[:MAX_HEIRS]
        for heir in heirs:
            self._leave_to(heir, above, node, barred_until)
        self._blocks.drop(node)
        self._blocks.order.push(above)
        for heir in heirs:
            if (own := above.children.get((heir, first))) is not None:
                for each in self._tree.nodes(self._tree.compress(own)):
                    self._blocks.order.push(each)

    def _leave_to(self, heir: Namespace, above: Node, node: Node, barred_until: float | None) -> None:
        barred = barred_until if node.namespace is self._tree.public else node.watched
        at = 0
        while at < node.pages:
            rest = node.tokens[at * self._tree.page :]
            own = above.children.get((heir, rest[: self._tree.page]))
            if own is None:
                until = next((lost for lost in range(at, node.pages) if node.blocks[lost] == LOST), node.pages)
                if at < until:
                    above = self._new(heir, above, node, at, until)
                    above.watched = barred
                if until < node.pages:
                    return  # an earlier heir has the rest, in a lower tier
                break
            common = self._tree.common(own, rest, 0, len(rest))
            above = self._blocks.split(own, common)
            in_pool = node.blocks[at + above.resident : max(at + above.resident, min(at + common, node.resident))]
            self._blocks.lend(above, in_pool)  # these pages may be in a lower tier while pages below them are not
            if barred is not None:
                above.watched = barred
            at += common
        children = node.children.values()
        for child in sorted(children, key=lambda child: child.namespace is self._tree.public):  # its own come first
            if child.has_right(heir):
                self._leave_to(heir, above, child, barred_until)

    def _new(self, heir: Namespace, above: Node, node: Node, start: int, end: int) -> Node:
        size = self._tree.page
        tokens = node.tokens[start * size : end * size]
        made = self._blocks.inherit(above, heir, tokens, node.blocks[start:end], node.epoch)
        made.compressed = node.compressed and node.namespace is heir
        lower = max(start, node.resident)
        node.blocks[lower:end] = [LOST] * max(0, end - lower)  # a copy in a lower tier belongs to one node
        return made
