from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloister.prefix.node import _SLACK, EvictionQueue, Namespace, Node, Tenant

NODES = 12
STEPS = st.lists(st.tuples(st.integers(0, NODES - 1), st.sampled_from((0, 1, 5, 1 << 64)), st.booleans()), max_size=60)


def node_of(epoch: int = 0) -> Node:
    node = Node(Namespace(Tenant("a")), b"", [], [])
    node.epoch = epoch
    return node


@given(STEPS)
def test_the_least_recently_used_node_is_first_whichever_others_are_removed(steps: list[tuple[int, int, bool]]) -> None:
    """A node that is named again leaves."""
    queue, nodes, expected = EvictionQueue(), [node_of() for _ in range(NODES)], dict[Node, tuple[int, bool, int]]()
    for serial, (number, epoch, compressed) in enumerate(steps):
        node = nodes[number]
        if expected.pop(node, None) is None:
            node.epoch, node.compressed = epoch, compressed
            queue.push(node, serial)
            expected[node] = epoch, not compressed, serial
        else:
            queue.remove(node)
        assert len(queue) == len(expected)
        assert [node.serial is not None for node in nodes] == [node in expected for node in nodes]
    while queue:
        node = min(expected, key=lambda node: expected[node])
        assert queue.first_epoch == expected[node][0] and queue.pop() == (expected.pop(node)[0], node)
    assert not expected and not queue._heap


def test_a_removed_node_is_not_kept_and_entries_of_removed_nodes_are_bounded() -> None:
    queue, first = EvictionQueue(), node_of(epoch=0)
    queue.push(first, 0)
    for serial in range(1, 1000):
        node = node_of(epoch=1)
        queue.push(node, serial)
        queue.remove(node)
        queue.remove(node)
        assert len(queue) == 1 and list(queue._nodes.values()) == [first] and len(queue._heap) <= _SLACK + 3
