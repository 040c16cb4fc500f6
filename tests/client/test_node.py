import threading
from datetime import UTC, datetime

import pytest

from cloister.addresses import HttpAddress
from cloister.attest.policy import Policy
from cloister.checks import Examination
from cloister.client.verification import KEY_MARGIN_S, Verification, VerifiedNode
from cloister.errors import ServiceUnavailable


class Verifier:
    """Makes verifications, counts them, and can be told to wait or to fail."""

    def __init__(self) -> None:
        self.made = 0
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False
        self.key_held_s: float | None = None

    def __call__(self, address: HttpAddress, policy: Policy) -> Verification:
        self.gate.wait(10)
        if self.failing:
            raise ServiceUnavailable("gone")
        self.made += 1
        key, held_s = bytes([self.made] * 32), self.key_held_s
        at = datetime.now(UTC)
        return Verification(str(address), at, bytes(32), Examination().verdict(), key, key_held_s=held_s)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def verifier() -> Verifier:
    return Verifier()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def node(verifier: Verifier, clock: Clock) -> VerifiedNode:
    return VerifiedNode("http://node.example/v1", Policy(max_age_s=60), verifier=verifier, clock=clock)


def test_making_one_verifies(node: VerifiedNode, verifier: Verifier) -> None:
    assert verifier.made == 1 and node.verified() is node.verification is node.fresh
    assert str(node.address) == "http://node.example:80"


def test_evidence_that_grew_old_is_asked_for_again(node: VerifiedNode, verifier: Verifier, clock: Clock) -> None:
    first = node.verified()
    clock.now = 59.9
    assert node.verified() is first
    clock.now = 60
    assert node.fresh is None and node.verification is first
    assert node.verified() is not first and verifier.made == 2
    clock.now = 119
    assert node.verified() is node.verification and verifier.made == 2


def test_a_node_is_verified_again_before_it_drops_the_key(verifier: Verifier, clock: Clock) -> None:
    verifier.key_held_s = 80.0
    node = VerifiedNode("http://node.example/v1", Policy(max_age_s=60), verifier=verifier, clock=clock)
    first = node.verified()
    clock.now = 80 - KEY_MARGIN_S - 0.1
    assert node.verified() is first
    clock.now = 80 - KEY_MARGIN_S
    verifier.key_held_s = 1.0
    second = node.verified()
    assert second is not first
    clock.now += KEY_MARGIN_S - 0.1
    assert node.verified() is second, "a node that promises little is not asked at every request"


def test_what_a_node_promises_prolongs_no_policy(verifier: Verifier, clock: Clock) -> None:
    verifier.key_held_s = 9000.0
    node = VerifiedNode("http://node.example/v1", Policy(max_age_s=5), verifier=verifier, clock=clock)
    first = node.verified()
    clock.now = 5
    assert node.verified() is not first


def test_one_that_was_of_no_use_is_replaced_once(node: VerifiedNode, verifier: Verifier) -> None:
    first = node.verified()
    second = node.verified(after=first)
    assert second is not first and node.verified(after=first) is second and verifier.made == 2


def test_old_evidence_is_never_relied_on_because_no_new_one_came(
    node: VerifiedNode, verifier: Verifier, clock: Clock
) -> None:
    clock.now, verifier.failing = 61, True
    for _ in range(2):
        with pytest.raises(ServiceUnavailable):
            node.verified()
    verifier.failing = False
    assert node.verified().channel_key == bytes([2] * 32)


def test_threads_that_come_together_verify_once(node: VerifiedNode, verifier: Verifier) -> None:
    first = node.verified()
    verifier.gate.clear()
    got: list[Verification] = []
    threads = [threading.Thread(target=lambda: got.append(node.verified(after=first))) for _ in range(8)]
    for thread in threads:
        thread.start()
    verifier.gate.set()
    for thread in threads:
        thread.join()
    assert verifier.made == 2 and len(got) == 8 and {id(each) for each in got} == {id(node.verification)}


async def test_beside_an_event_loop_it_is_the_same(node: VerifiedNode, verifier: Verifier) -> None:
    first = await node.verified_beside()
    assert first is node.verification and verifier.made == 1
    second = await node.verified_beside(after=first)
    assert second is not first and await node.verified_beside(after=first) is second
