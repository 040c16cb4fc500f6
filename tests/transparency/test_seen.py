"""A client's memory: it never goes back, is its owner's alone, and is not guessed at when damaged."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import SetupError, VerificationFailed
from cloister.transparency import seen as seen_module
from cloister.transparency.checkpoint import Checkpoint, SignedCheckpoint, read_checkpoint
from cloister.transparency.merkle import fold, leaf_hash
from cloister.transparency.note import Note, SigningKey
from cloister.transparency.seen import MAX_MEMORY_BYTES, SeenLogs, SeenMoved

KEY = SigningKey.generate("log.example")
OTHER = SigningKey.generate("other.example")


def tree(size: int, *, branch: str = "", key: SigningKey = KEY) -> SignedCheckpoint:
    """The signed checkpoint of a made-up tree."""
    text = Checkpoint(key.name, size, fold([leaf_hash(f"{n}{branch}".encode()) for n in range(size)])).text
    return read_checkpoint(str(Note(text, (key.sign(text),))))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "logs.json"


def test_what_was_seen_is_remembered_across_programs(file: Path) -> None:
    assert SeenLogs(file).last("log.example") is None
    SeenLogs(file).remember(tree(3), after=None)
    assert SeenLogs(file).last("log.example") == tree(3).checkpoint
    SeenLogs(file).remember(tree(5), after=tree(3).checkpoint)
    SeenLogs(file).remember(tree(2, key=OTHER), after=None)
    assert SeenLogs(file).last("log.example") == tree(5).checkpoint
    assert json.loads(file.read_bytes())["checkpoints"]["log.example"] == str(tree(5)), "its signatures with it"
    assert SeenLogs(file).last("other.example") == tree(2, key=OTHER).checkpoint


def test_what_is_known_is_not_written_again(file: Path) -> None:
    SeenLogs(file).remember(tree(3), after=None)
    before = file.stat()
    SeenLogs(file).remember(tree(3), after=tree(3).checkpoint)
    assert file.stat().st_ino == before.st_ino


def test_asking_makes_no_file(file: Path) -> None:
    SeenLogs(file).last("log.example")
    SeenLogs(file).pinned("https://node.example")
    assert not file.parent.exists()


def test_the_memory_is_its_owners_alone(file: Path) -> None:
    old = os.umask(0)
    try:
        SeenLogs(file).remember(tree(3), after=None)
    finally:
        os.umask(old)
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("taken_back", [tree(4), tree(5, branch="fork")])
def test_a_log_does_not_go_back(file: Path, taken_back: SignedCheckpoint) -> None:
    memory = SeenLogs(file)
    memory.remember(tree(5), after=None)
    with pytest.raises(VerificationFailed) as refusal:
        memory.remember(taken_back, after=tree(5).checkpoint)
    assert refusal.value.checks == ("log consistency",) and not isinstance(refusal.value, SeenMoved)
    assert memory.last("log.example") == tree(5).checkpoint


def test_a_verification_that_began_from_another_past_is_made_again(file: Path) -> None:
    memory = SeenLogs(file)
    memory.remember(tree(5), after=None)
    for after in (None, tree(3).checkpoint):
        with pytest.raises(SeenMoved):
            memory.remember(tree(7), after=after)
    assert memory.last("log.example") == tree(5).checkpoint
    with pytest.raises(SeenMoved):
        SeenLogs(file).remember(tree(1, key=OTHER), after=tree(1, key=OTHER).checkpoint)


def test_many_at_once_never_go_back(file: Path) -> None:
    trees = [tree(size) for size in range(1, 31)]
    sizes: list[int] = []

    def visit() -> None:
        memory = SeenLogs(file)
        while True:
            last = memory.last("log.example")
            if last is not None and last.size == 30:
                return
            try:
                memory.remember(trees[last.size if last else 0], after=last)
            except SeenMoved:
                continue
            sizes.append((last.size if last else 0) + 1)

    visitors = [threading.Thread(target=visit) for _ in range(4)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    assert sorted(sizes) == list(range(1, 31))  # each step was taken exactly once


def test_a_key_is_pinned_on_first_use(file: Path) -> None:
    memory = SeenLogs(file)
    place = "https://node.example:8000"
    assert memory.pinned(place) is None
    memory.pin(place, KEY.verifier)
    memory.pin(place, KEY.verifier)
    assert SeenLogs(file).pinned(place) == str(KEY.verifier)
    with pytest.raises(VerificationFailed) as refusal:
        memory.pin(place, SigningKey.generate("log.example").verifier)
    assert refusal.value.checks == ("log checkpoint",)
    assert memory.pinned(place) == str(KEY.verifier) and memory.pinned("https://else.example") is None


def good(file: Path) -> dict[str, object]:
    SeenLogs(file).remember(tree(3), after=None)
    loaded: dict[str, object] = json.loads(file.read_text())
    return loaded


def test_a_damaged_memory_fails_closed_and_says_what_to_do(file: Path) -> None:
    whole = good(file)
    swapped = {**whole, "checkpoints": {"log.example": str(tree(3, key=OTHER))}}
    broken = {**whole, "checkpoints": {"log.example": "nonsense"}}
    damages = (
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        json.dumps({**whole, "version": 2}).encode(),
        json.dumps({**whole, "more": 1}).encode(),
        json.dumps(swapped).encode(),
        json.dumps(broken).encode(),
    )
    for damage in damages:
        file.write_bytes(damage)
        for use in (
            lambda: SeenLogs(file).last("log.example"),
            lambda: SeenLogs(file).remember(tree(4), after=None),
        ):
            with pytest.raises(SetupError) as refusal:
                use()
            assert refusal.value.hint is not None and str(file) in refusal.value.hint
        assert file.read_bytes() == damage


def test_an_oversized_memory_is_not_read(file: Path) -> None:
    good(file)
    with file.open("r+b") as opened:
        opened.truncate(MAX_MEMORY_BYTES + 1)
    with pytest.raises(SetupError, match="too large"):
        SeenLogs(file).last("log.example")


def test_a_memory_that_others_can_write_or_that_is_no_file_is_refused(file: Path, tmp_path: Path) -> None:
    good(file)
    file.chmod(0o620)
    with pytest.raises(SetupError, match="others"):
        SeenLogs(file).last("log.example")
    file.chmod(0o600)
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    with pytest.raises(SetupError, match="cannot be read"):
        SeenLogs(file).last("log.example")
    file.unlink()
    file.mkdir()
    with pytest.raises(SetupError):
        SeenLogs(file).last("log.example")
    file.rmdir()
    os.mkfifo(file)
    with pytest.raises(SetupError):
        SeenLogs(file).last("log.example")


def test_a_crash_while_writing_leaves_the_old_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SeenLogs(file)
    memory.remember(tree(3), after=None)

    def out_of_space(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", out_of_space)
        with pytest.raises(SetupError, match="No space left"):
            memory.remember(tree(5), after=tree(3).checkpoint)
    assert memory.last("log.example") == tree(3).checkpoint
    assert sorted(path.name for path in file.parent.iterdir()) == [".logs.json.lock", "logs.json"]
    memory.remember(tree(5), after=tree(3).checkpoint)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_memory_or_refused(data: bytes) -> None:
    try:
        msgspec.json.decode(data, type=seen_module._Memory)
    except (seen_module.msgspec.MsgspecError, ValueError):
        return
