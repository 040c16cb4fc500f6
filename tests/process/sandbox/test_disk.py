"""The disk's thread inside the sandbox: a sealed service writes and reads, and can do no more with the file."""

from __future__ import annotations

import tempfile
from hashlib import sha256

from cloister.prefix.disk import TAG_BYTES, DiskTier
from cloister.prefix.node import Namespace, Tenant
from cloister.prefix.tier import State
from tests.process.sandbox.node import Setting, attempt_inside

BLOCK = 1 << 16
ROOM = 2 * (BLOCK + TAG_BYTES)


def go_and_come_back(tier: DiskTier) -> list[object]:
    data, bounds = b"x" * BLOCK, [sha256(bytes([one])).digest() for one in range(3)]
    numbers = [tier.store(Namespace(1, Tenant("a")), bound, data) for bound in bounds]
    settled = tier.settle(30)
    states = [tier.fetch(number or 0, bound) for number, bound in zip(numbers, bounds, strict=True)]
    settled &= tier.settle(30)
    after = [tier.fetch(number or 0, bound) for number, bound in zip(numbers, bounds, strict=True)]
    return [settled, *(state.value for state in states), *(state.value for state in after), tier.take(1) == data]


def test_a_sealed_process_writes_and_reads_in_a_thread_it_had() -> None:
    with tempfile.TemporaryFile(buffering=0) as file:
        setting = Setting(
            name="service",
            keep=(file.fileno(),),
            prepare=lambda _: DiskTier(file.fileno(), 2 * ROOM, BLOCK, b"model"),
            file_bytes=ROOM,
        )
        outcome = attempt_inside(go_and_come_back, setting)
    here, coming, lost = State.HERE.value, State.COMING.value, State.LOST.value
    assert outcome.result == [True, coming, coming, lost, here, here, lost, True], outcome
