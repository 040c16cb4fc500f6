"""Whom a watchdog finds late, and whom it must not: the rule against a model, then real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.messages.controller_forkserver import FromForkServer, ToForkServer
from cloister.messages.lifecycle import Ping, Pong
from cloister.process import watchdog
from cloister.process.child import is_stopped
from cloister.process.endpoint import Endpoint
from cloister.process.watchdog import LOOK_S, MOST_COUNTED_S, SILENT, STOPPED_S, Finding, Patience, Silence, Watchdog

HEARD = "heard"
PATIENCE = Patience(silent_s=20.0, ask_every_s=5.0)
looks = st.tuples(st.floats(0, 100), st.booleans())


@given(st.lists(st.one_of(st.just(HEARD), looks), max_size=200), st.booleans())
def test_nobody_is_late_who_answers_in_time_and_runs(events: list[tuple[float, bool] | str], asked: bool) -> None:
    """Counted time alone matters, and of that only what passed since it was last heard, or asked."""
    silence = Silence(PATIENCE if asked else None)
    unheard = stopped_for = 0.0
    since_asked: float | None = None
    for event in events:
        if isinstance(event, str):
            silence.answered()
            unheard, since_asked = 0.0, None
            continue
        passed, stopped = event
        counted = min(passed, MOST_COUNTED_S)
        unheard += counted
        stopped_for = stopped_for + counted if stopped else 0.0
        since_asked = None if since_asked is None else since_asked + counted
        found = silence.look(passed, stopped=stopped)
        assert (found is Finding.STOPPED) == (stopped_for >= STOPPED_S)
        if found is Finding.STOPPED:
            return
        assert asked or found is Finding.FINE
        assert (found is Finding.SILENT) == (since_asked is not None and since_asked >= PATIENCE.silent_s)
        if found is Finding.SILENT:
            return
        assert (found is Finding.ASK) == (asked and since_asked is None and unheard >= PATIENCE.ask_every_s)
        if found is Finding.ASK:
            since_asked = 0.0


@pytest.mark.parametrize("kind", SILENT)
def test_every_kind_is_found_within_its_deadline(kind: str) -> None:
    patience = SILENT[kind]
    silence, passed = Silence(patience), 0.0
    while silence.look(LOOK_S, stopped=False) is not Finding.SILENT:
        passed += LOOK_S
        assert passed <= patience.ask_every_s + patience.silent_s
    silence, passed = Silence(patience), 0.0
    while silence.look(LOOK_S, stopped=True) is not Finding.STOPPED:
        passed += LOOK_S
        assert passed <= STOPPED_S


def test_a_suspended_owner_finds_nobody_late() -> None:
    """Its own sleep is nobody's silence, however long it was."""
    silence = Silence(PATIENCE)
    assert silence.look(3600.0, stopped=True) is Finding.FINE
    silence = Silence(Patience(silent_s=5.0, ask_every_s=0.0))
    assert silence.look(3600.0, stopped=False) is Finding.ASK
    assert silence.look(3600.0, stopped=False) is Finding.FINE
    silence.answered()
    assert silence.look(3600.0, stopped=False) is Finding.ASK


def test_a_piece_of_work_that_the_settings_allow_is_no_silence() -> None:
    assert SILENT["vault"].beyond(15.0).silent_s == SILENT["vault"].silent_s + 15.0


async def test_it_asks_is_answered_and_calls_late_once() -> None:
    now, said, found = 0.0, [], []
    dog = Watchdog(lambda: False, lambda: said.append("asked"), found.append, lambda: now)
    dog.demand_answers(Patience(silent_s=3.0, ask_every_s=2.0))
    for _ in range(20):
        now += 1.0
        dog.look()
        if said:
            said.clear()
            dog.answered()
    assert not found
    while not found:
        now += 1.0
        dog.look()
    assert found == [Finding.SILENT] and said == ["asked"]
    dog.close()


async def _ends(ended: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await ended.wait()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short looks: a machine that is slow for a moment finds nobody late."""
    monkeypatch.setattr(watchdog, "LOOK_S", 0.01)
    monkeypatch.setattr(watchdog, "MOST_COUNTED_S", 0.02)
    monkeypatch.setattr(watchdog, "STOPPED_S", 0.05)


async def test_a_line_whose_peer_does_not_answer_ends_and_one_that_does_stays(hasty: None) -> None:
    heard: list[object] = []
    ended, patience = asyncio.Event(), Patience(silent_s=0.2, ask_every_s=0.02)
    ours, theirs = socket.socketpair()
    line = Endpoint(ours, FromForkServer, heard.append, ended.set)
    line.watch("child", lambda: False)
    asked = asyncio.Semaphore(0)
    silent = False

    def answer(message: Ping) -> None:
        if not silent:
            peer.send(Pong())
        asked.release()

    peer = Endpoint(theirs, ToForkServer, answer, lambda: None)
    line.demand_answers(patience)
    async with asyncio.timeout(60):
        for _ in range(20):  # several times what it may be silent
            await asked.acquire()
    assert line.open and not heard
    silent = True
    await _ends(ended)
    assert line.late and not line.open
    peer.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process and its child, whose id it prints; it is called as a keeper is."""
    code = (
        "import os, sys, time\n"
        "from cloister.process.hardening import name_process\n"
        "child = os.fork()\n"
        "if child: name_process('keeper'); print(child, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


async def test_a_stopped_process_is_found_also_behind_its_keeper(hasty: None, sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.stdout is not None
    child = int(sleeper.stdout.readline())
    try:
        assert not is_stopped(sleeper.pid) and not is_stopped(child)
        ended = asyncio.Event()
        ours, theirs = socket.socketpair()
        line = Endpoint(ours, Pong, lambda message: None, ended.set)
        line.watch("child", lambda: is_stopped(sleeper.pid))
        os.kill(child, signal.SIGSTOP)
        with theirs:
            await _ends(ended)
        assert line.late
        os.kill(child, signal.SIGCONT)
        os.kill(sleeper.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while is_stopped(child) or not is_stopped(sleeper.pid):
                await asyncio.sleep(0.01)
    finally:
        os.kill(child, signal.SIGKILL)
    assert not is_stopped(2**22 + 1)
