"""A token is spent once: also after a crash, and among many at once."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.access import spent
from cloister.access.spent import SpentTokens, tenant_of
from cloister.access.tokens import Token
from cloister.errors import QueueFull, SetupError, TokenSpent


def token(number: int, key: int = 1) -> Token:
    return Token(number.to_bytes(32), bytes(32), key.to_bytes(32), bytes(256))


def crash(tokens: SpentTokens) -> None:
    """The kernel releases the lock of a process that ended; nothing else is tidied up."""
    os.close(tokens._lock)


def test_a_token_is_spent_once(tmp_path: Path) -> None:
    tokens = SpentTokens(tmp_path)
    assert tokens.spend([token(1), token(2), token(1)])[:2] == [None, None]
    [again] = tokens.spend([token(1)])
    assert isinstance(again, TokenSpent)
    assert tokens.spend([token(1, key=2)]) == [None]


def test_within_one_batch_the_second_is_refused(tmp_path: Path) -> None:
    first, second = SpentTokens(tmp_path).spend([token(1), token(1)])
    assert first is None and isinstance(second, TokenSpent)


def test_what_was_spent_stays_spent_after_a_crash(tmp_path: Path) -> None:
    before = SpentTokens(tmp_path)
    before.spend([token(1), token(2)])
    crash(before)
    outcome = SpentTokens(tmp_path).spend([token(1), token(2), token(3)])
    assert [isinstance(each, TokenSpent) for each in outcome] == [True, True, False]


def test_where_nothing_is_written_a_crash_gives_the_token_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(SpentTokens, "_write", staticmethod(lambda file, data: None))
    before = SpentTokens(tmp_path)
    before.spend([token(1)])
    crash(before)
    assert SpentTokens(tmp_path).spend([token(1)]) == [None]


def test_a_record_that_a_crash_tore_keeps_what_was_whole(tmp_path: Path) -> None:
    before = SpentTokens(tmp_path)
    before.spend([token(1), token(2)])
    crash(before)
    [path] = tmp_path.glob("*.spent")
    path.write_bytes(path.read_bytes()[:-5])
    after = SpentTokens(tmp_path)
    assert isinstance(after.spend([token(1)])[0], TokenSpent)
    assert after.spend([token(2), token(3)]) == [None, None]
    crash(after)
    assert isinstance(SpentTokens(tmp_path).spend([token(3)])[0], TokenSpent)


def test_a_disk_that_fails_serves_nobody_and_the_token_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = SpentTokens(tmp_path)
    tokens.spend([token(0)])

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spent.os, "write", full)
    with pytest.raises(Exception, match="cannot be written down"):
        tokens.spend([token(1)])
    monkeypatch.undo()
    assert isinstance(tokens.spend([token(1)])[0], TokenSpent)


def test_what_a_full_disk_left_of_a_token_moves_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, write = SpentTokens(tmp_path), os.write
    tokens.spend([token(1)])
    room = [5]

    def nearly_full(file: int, data: bytes) -> int:
        if not room:
            raise OSError(28, "No space left on device")
        return write(file, data[: room.pop()])

    monkeypatch.setattr(spent.os, "write", nearly_full)
    with pytest.raises(SetupError):
        tokens.spend([token(2)])
    monkeypatch.undo()
    assert tokens.spend([token(3)]) == [None]
    crash(tokens)
    outcome = SpentTokens(tmp_path).spend([token(1), token(3)])
    assert all(isinstance(each, TokenSpent) for each in outcome)


def test_a_folder_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    """Each of two nodes would take the tokens that the other took."""
    held = SpentTokens(tmp_path)
    with pytest.raises(SetupError, match="Another process"):
        SpentTokens(tmp_path)
    held.close()
    SpentTokens(tmp_path).close()


def test_the_record_goes_with_its_key(tmp_path: Path) -> None:
    tokens = SpentTokens(tmp_path)
    tokens.spend([token(1, key=1), token(1, key=2)])
    tokens.forget([(2).to_bytes(32)])
    assert [path.stem for path in tmp_path.glob("*.spent")] == [(2).to_bytes(32).hex()]
    assert isinstance(tokens.spend([token(1, key=2)])[0], TokenSpent)


def test_it_remembers_no_more_than_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spent, "MOST_OF_A_KEY", 2)
    outcome = SpentTokens(tmp_path).spend([token(1), token(2), token(3)])
    assert isinstance(outcome[2], QueueFull)


def test_its_files_are_for_the_node_alone_and_hold_nonces_alone(tmp_path: Path) -> None:
    SpentTokens(tmp_path / "spent").spend([token(7)])
    [path] = (tmp_path / "spent").glob("*.spent")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert path.read_bytes() == (7).to_bytes(32)


@given(orders=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6), restarts=st.sets(st.integers(0, 5)))
def test_however_they_come_each_is_accepted_once(
    orders: list[list[int]], restarts: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("spent")
    tokens, accepted = SpentTokens(folder), []
    for number, order in enumerate(orders):
        if number in restarts:
            crash(tokens)
            tokens = SpentTokens(folder)
        outcome = tokens.spend([token(each) for each in order])
        accepted += [each for each, why in zip(order, outcome, strict=True) if why is None]
    assert sorted(accepted) == sorted({each for order in orders for each in order})


def test_no_two_tokens_are_one_tenant() -> None:
    assert len({tenant_of(token(number << 200)) for number in range(50)}) == 50
