"""Forbidden things tried from inside a sealed process, as root's child and as somebody's."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cloister.process.sandbox.layers import BEST_EFFORT, Layer
from tests.process.sandbox import attempts
from tests.process.sandbox.node import DATA_BYTES, Outcome, Setting, User, attempt_inside

ENDS_THE_PROCESS = [
    attempts.open_internet_socket,
    attempts.open_local_socket,
    attempts.make_socket_pair,
    attempts.connect,
    attempts.listen,
    attempts.fork,
    attempts.fork_by_raw_call,
    attempts.execute,
    attempts.spawn,
    attempts.trace,
    attempts.read_other_memory,
    attempts.signal_everyone,
    attempts.signal_another,
    attempts.signal_another_thread_group,
    attempts.create_memory_file,
    attempts.mount,
    attempts.change_root,
    attempts.new_namespace,
    attempts.enter_namespace,
    attempts.use_ring,
    attempts.use_bpf,
    attempts.use_faults,
    attempts.use_counters,
    attempts.use_keys,
    attempts.get_handle_of_process,
    attempts.load_module,
]
IS_REFUSED = [
    attempts.open_for_reading,
    attempts.open_for_writing,
    attempts.write_file,
    attempts.make_folder,
    attempts.write_to_open_file,
    attempts.grow_open_file,
    attempts.fork_by_clone3,
    attempts.start_thread,
    attempts.map_executable,
    attempts.make_executable,
    attempts.map_uncounted_shared,
    attempts.map_uncounted_growing,
    attempts.create_shared_memory,
    attempts.become_root,
    attempts.become_dumpable,
    attempts.set_limit,
    attempts.send_to_an_address,
    attempts.send_message,
    attempts.receive_message,
]


@contextmanager
def kept_descriptor(attempt: Any) -> Iterator[int]:
    """Something open for the attempts that need it; the node keeps it over the seal."""
    if attempt in (attempts.write_to_open_file, attempts.grow_open_file):
        with open(os.memfd_create("kept"), "wb") as file:
            yield file.fileno()
    elif attempt is attempts.enter_namespace:
        with open("/proc/self/ns/uts") as namespace:
            yield namespace.fileno()
    else:
        here, there = socket.socketpair()
        with here, there:
            there.send(b"waiting")
            yield here.fileno()


def try_inside(attempt: Any, user: User, **changes: Any) -> Outcome:
    with kept_descriptor(attempt) as descriptor:
        return attempt_inside(lambda _: attempt(descriptor), Setting(user=user, keep=(descriptor,), **changes))


@pytest.mark.parametrize("attempt", ENDS_THE_PROCESS, ids=lambda attempt: attempt.__name__)
def test_an_attack_ends_the_process(attempt: Any, user: User) -> None:
    outcome = try_inside(attempt, user)
    assert outcome.killed_by_filter, outcome


@pytest.mark.parametrize("attempt", IS_REFUSED, ids=lambda attempt: attempt.__name__)
def test_what_a_library_might_try_is_refused(attempt: Any, user: User) -> None:
    outcome = try_inside(attempt, user)
    assert outcome.error and outcome.errno, outcome
    assert not outcome.signal


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 numbers exist on x86_64 only")
def test_x32_system_calls_end_the_process(user: User) -> None:
    assert try_inside(attempts.old_system_call, user).killed_by_filter


def test_every_required_layer_holds(user: User) -> None:
    outcome = attempt_inside(lambda _: None, Setting(user=user, allow_degraded=False))
    assert outcome.succeeded
    assert set(outcome.missing) <= BEST_EFFORT
    assert set(outcome.applied) | set(outcome.missing) == set(Layer)


@pytest.mark.parametrize("layer", sorted(set(Layer) - BEST_EFFORT))
def test_a_missing_layer_is_refused(layer: Layer) -> None:
    refused = attempt_inside(lambda _: None, Setting(without=frozenset({layer}), allow_degraded=False))
    assert refused.error == "SandboxIncomplete"
    allowed = attempt_inside(lambda _: None, Setting(without=frozenset({layer}), allow_degraded=True))
    assert allowed.succeeded and layer in allowed.missing


@pytest.mark.parametrize("layer", sorted(BEST_EFFORT))
def test_a_layer_of_best_effort_is_reported_and_not_refused(layer: Layer) -> None:
    outcome = attempt_inside(lambda _: None, Setting(without=frozenset({layer}), allow_degraded=False))
    assert outcome.succeeded and layer in outcome.missing


def test_the_service_receives_messages_and_sends_none(user: User) -> None:
    assert try_inside(attempts.receive_message, user, name="service").succeeded
    assert try_inside(attempts.send_message, user, name="service").error


def test_memory_beyond_the_agreed_is_an_error_inside(user: User) -> None:
    """And only there: this process, which maps more than that, goes on."""

    def take(share: float) -> Any:
        return attempt_inside(lambda _: len(bytes(int(DATA_BYTES * share))), Setting(user=user))

    assert take(0.8).result == int(DATA_BYTES * 0.8)
    assert take(64).error == "MemoryError"  # more than this process may have freed and kept


def test_a_crash_ends_the_process_without_a_core(user: User) -> None:
    outcome = attempt_inside(lambda _: os.abort(), Setting(user=user))
    assert outcome.signal and not outcome.core


def test_what_computing_needs_still_works(user: User) -> None:
    def compute(_: Any) -> bool:
        time.sleep(0.001)
        return len(os.urandom(8)) == 8 and sum(range(100_000)) > 0 and len(bytearray(8 << 20)) == 8 << 20

    assert attempt_inside(compute, Setting(user=user)).result is True


def test_an_import_after_the_seal_fails_and_does_not_kill(user: User) -> None:
    outcome = attempt_inside(lambda _: __import__("sndhdr"), Setting(user=user))
    assert outcome.error == "ModuleNotFoundError"
