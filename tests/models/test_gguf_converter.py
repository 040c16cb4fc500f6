"""The process that converts: it ends with whoever wanted the model, leaves nothing then, and its errors are ours."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from cloister.errors import CloisterError, SetupError
from cloister.files import only_one
from cloister.models import convert
from cloister.models.gguf_file import GgufFile
from cloister.models.source import find_model
from cloister.models.weights import open_weights
from cloister.process import child

ROOT = Path(__file__).parents[2]
STAND_IN = "tests.models.stand_in_converter"
WITH_STAND_IN = f"""
import sys
from cloister.models import convert
convert.CONVERTER = "{STAND_IN}"
"""
SERVE = f"""{WITH_STAND_IN}
from cloister.__main__ import main
sys.argv = ["cloister", "serve", "--port", "0", "--model", sys.argv[1]]
main()
"""
FIND = f"""{WITH_STAND_IN}
from cloister.models.source import find_model
find_model(sys.argv[1])
"""


@contextmanager
def converting(program: str, gguf: Path) -> Iterator[subprocess.Popen[str]]:
    """This program when half of the model is converted. The end of what it prints is the end of its last process."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = {**os.environ, "PYTHONPATH": paths, "CLOISTER_STAND_IN": "hang"}
    command = [sys.executable, "-c", program, str(gguf)]
    with subprocess.Popen(command, env=told, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "half\n", process.stderr.read()
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def real_process(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Conversions of this process, too, are left to a process: to the stand-in, as CLOISTER_STAND_IN says."""
    monkeypatch.setattr(convert, "CONVERTER", STAND_IN)
    monkeypatch.setattr(convert, "run_module", child.run_module)
    return monkeypatch


def folders(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if path.is_dir()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_it_ends_with_one_line_and_leaves_nothing(
    cache: Path, small_gguf: Path, number: signal.Signals
) -> None:
    with converting(SERVE, small_gguf) as process:
        assert len(folders(cache)) == 1
        process.send_signal(number)
        said, errors = process.communicate(timeout=60)
    assert (process.returncode, said, errors) == (130, "", "Converting tiny-llama…\nStopped.\n")
    assert folders(cache) == []


def test_the_converter_does_not_outlive_a_killed_parent_and_the_next_one_cleans_up(
    cache: Path, small_gguf: Path
) -> None:
    with converting(FIND, small_gguf) as process:
        process.kill()
        process.communicate(timeout=60)
    [left] = folders(cache)
    assert left.startswith(".partial-")
    folder = find_model(str(small_gguf))
    assert len(open_weights(folder)) == 21
    assert folders(cache) == [folder.path.name]


@contextmanager
def interrupt_when(true: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C, as soon as this is so. KeyboardInterrupt is raised once, but sent until it is: Python notes a signal that
    comes when the main thread has given up the GIL and is not yet in its system call, and then blocks there."""
    raised, over = threading.Event(), threading.Event()

    def once(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt

    def send() -> None:
        while not over.is_set() and not true():
            time.sleep(0.01)
        while not over.is_set() and not raised.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            raised.wait(0.2)

    before = signal.signal(signal.SIGINT, once)
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGINT, before)


def test_who_goes_on_after_it_was_stopped_has_no_converter_left(
    cache: Path, small_gguf: Path, real_process: pytest.MonkeyPatch
) -> None:
    real_process.setenv("CLOISTER_STAND_IN", "hang")
    before = set(psutil.Process().children())
    half = lambda: any((cache / "models").glob(".partial-*/*"))  # noqa: E731
    with interrupt_when(half), pytest.raises(KeyboardInterrupt):
        find_model(str(small_gguf))
    assert set(psutil.Process().children()) == before and folders(cache) == []


def test_who_waits_for_anothers_conversion_ends_when_told(cache: Path, small_gguf: Path) -> None:
    def waits() -> bool:
        with open("/proc/locks") as locks:
            return any("-> FLOCK" in line and f" {os.getpid()} " in line for line in locks)

    done = find_model(str(small_gguf)).path
    with only_one(done.with_name(f".{done.name}.lock")):
        done.rename(cache / "elsewhere")
        with interrupt_when(waits), pytest.raises(KeyboardInterrupt):
            find_model(str(small_gguf))


def test_a_converter_that_dies_is_told(cache: Path, small_gguf: Path, real_process: pytest.MonkeyPatch) -> None:
    real_process.setenv("CLOISTER_STAND_IN", "die")
    with pytest.raises(SetupError, match=r"converted tiny-llama ended before it was done \(by signal 9\)") as caught:
        find_model(str(small_gguf))
    assert "memory" in str(caught.value.hint) and folders(cache) == []


@pytest.mark.parametrize(
    ("failure", "kind", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), SetupError, "cannot be written to .*No space left"),
        (ValueError("what a library says"), CloisterError, r"tiny-llama cannot be converted: ValueError at \S+\.$"),
    ],
)
def test_what_goes_wrong_there_is_told_here(
    cache: Path,
    small_gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    kind: type[CloisterError],
    told: str,
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(GgufFile, "write_weights", fail)
    with pytest.raises(kind, match=told) as caught:
        find_model(str(small_gguf))
    assert type(caught.value) is kind and folders(cache) == []
    assert kind is CloisterError or "Make room" in str(caught.value.hint)
