"""One bad node of N gets 1/N of a user's requests, whatever relay, issuer and node do; controls where one chooses."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.access.node_choice import check_chosen, chosen_node
from cloister.access.tokens import Token
from cloister.errors import TokenInvalid

NODES = [f"https://node-{number}.example" for number in range(8)]
BAD = NODES[3]
REQUESTS = 100_000


def token(nonce: bytes) -> Token:
    return Token(nonce, bytes(32), bytes(32), bytes(256))


def most_by_chance(trials: int, chance: float) -> float:
    """What a fair count exceeds once in a million times."""
    return trials * chance + 4.8 * math.sqrt(trials * chance * (1 - chance))


def test_every_node_gets_its_share_of_a_users_requests() -> None:
    drawn = random.Random(1)
    counts = Counter(chosen_node(token(drawn.randbytes(32)), NODES) for _ in range(REQUESTS))
    assert set(counts) == set(NODES)
    assert max(counts.values()) <= most_by_chance(REQUESTS, 1 / len(NODES))


def steered(requests: int, failing: float, most_retries: int, drawn: random.Random) -> tuple[int, int]:
    """How many of a victim's requests reach the bad node, and how many tokens the victim uses, where relay, issuer and
    bad node collude: what they can cause is that requests to other nodes fail. The client then takes a new token."""
    reached = used = 0
    for _ in range(requests):
        for _ in range(1 + most_retries):
            used += 1
            if chosen_node(token(drawn.randbytes(32)), NODES) == BAD:
                reached += 1
                break
            if drawn.random() >= failing:
                break
    return reached, used


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_colluders_that_make_requests_fail_get_the_share_of_the_tokens_used(retries: int) -> None:
    reached, used = steered(20_000, 1, retries, random.Random(2))
    assert reached <= most_by_chance(used, 1 / len(NODES))
    assert used <= 20_000 * (1 + retries)


def test_where_a_balancer_chooses_the_bad_node_gets_every_request() -> None:
    """The control: a router that shows three candidates and is believed."""
    drawn = random.Random(3)
    chosen = Counter(BAD if BAD in (shown := drawn.sample(NODES, 3)) else shown[0] for _ in range(20_000))
    assert chosen[BAD] > 2 * most_by_chance(20_000, 1 / len(NODES))


def test_where_the_issuer_knows_the_nonce_it_steers() -> None:
    """The control of blindness: an issuer that draws nonces draws those that name its node."""
    drawn = random.Random(4)
    nonces = [nonce for nonce in (drawn.randbytes(32) for _ in range(4000)) if chosen_node(token(nonce), NODES) == BAD]
    assert len(nonces) > 300 and all(chosen_node(token(nonce), NODES) == BAD for nonce in nonces)


@given(nonce=st.binary(min_size=32, max_size=32), order=st.permutations(NODES), gone=st.sampled_from(NODES))
def test_the_order_of_the_list_does_not_matter_and_a_node_that_leaves_moves_its_own_tokens_alone(
    nonce: bytes, order: list[str], gone: str
) -> None:
    chosen = chosen_node(token(nonce), NODES)
    assert chosen_node(token(nonce), order) == chosen
    if gone != chosen:
        assert chosen_node(token(nonce), [each for each in NODES if each != gone]) == chosen


def test_a_node_refuses_tokens_that_name_another() -> None:
    drawn = random.Random(5)
    taken = 0
    for _ in range(200):
        one = token(drawn.randbytes(32))
        try:
            check_chosen(one, NODES, BAD)
            taken += 1
        except TokenInvalid:
            assert chosen_node(one, NODES) != BAD
    assert 5 < taken < 60


@pytest.mark.parametrize("nodes", [[], ["a", "a"]], ids=["none", "twice"])
def test_a_list_that_is_none_is_refused(nodes: list[str]) -> None:
    with pytest.raises(TokenInvalid):
        chosen_node(token(bytes(32)), nodes)
