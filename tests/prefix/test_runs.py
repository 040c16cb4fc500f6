from __future__ import annotations

import gc
import weakref

from cloister.prefix.monitor import Monitor
from cloister.prefix.node import Link, Node
from cloister.prefix.owners import Account, Owner
from cloister.prefix.runs import MOST, NONE, Runs, content_of
from tests.prefix.keys import SIZE, pages


def test_a_number_that_is_given_again_says_nothing_of_who_had_it() -> None:
    runs, victim, other = Runs(SIZE), Owner(1, Account("victim")), Owner(2, Account("other"))
    root = runs.new(NONE, other, b"")
    node = Node(runs, runs.new(NONE, victim, content_of(pages(1, 2), [3, 4])))
    node.add_holder(victim)
    runs.attach(node.run, root)
    node.touch(victim, 9)
    node.add_link(Link(1, 9, 1, 1))
    node.watched = Monitor().watch("victim")
    victim.account.heap.push(5, node.run, runs.place)
    runs.detach(node.run)
    runs.free(node.run)
    assert node.is_gone and not node.tokens and not victim.account.heap
    again = Node(runs, runs.new(NONE, other, content_of(pages(7), [8])))
    assert again.run == node.run and again.tokens == pages(7) and again.blocks == (8,) and again.resident == 1
    assert (again.epoch, again.hits, again.user_count) == (0, 0, 0)
    assert again.links is None and again.watched is None and not again.children and again.holders == (other,)


def test_who_has_no_run_is_held_by_no_column() -> None:
    """With a tenant's last run goes its account, and with that its key."""
    runs, first = Runs(SIZE), Owner(1, Account("a"))
    other, account = Owner(2, Account("b")), weakref.ref(first.account)
    kept = runs.new(NONE, other, content_of(pages(1), [0]))
    for holder in (first, other, first):
        runs.add_right(kept, holder)
    gone = runs.new(NONE, first, content_of(pages(2), [1]))
    runs.free(gone)
    del first, holder
    gc.collect()
    assert account() is not None, "it has a right to what another sees"
    runs.drop_right(kept, Node(runs, kept).holders[0])
    gc.collect()
    assert account() is None and Node(runs, kept).holders == (other,)
    runs.free(kept)
    assert runs.owner_at(runs.owner[runs.new(NONE, other, b"")]) is other, "its seat is another's now"


def test_counts_end_where_their_columns_do() -> None:
    runs, owner = Runs(SIZE), Owner(1, Account("a"))
    node = Node(runs, runs.new(NONE, owner, content_of(pages(1), [0])))
    runs.hits[node.run] = MOST
    node.touch(owner, MOST)
    assert (node.hits, node.epoch, node.user_count) == (MOST, MOST, 1)
    runs.set_places(node.run, 0, [-(1 << 62)])
    assert node.blocks == (-(1 << 62),)
